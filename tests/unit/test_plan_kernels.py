"""Studies of our kernels: what they are fed, what is compared, and budgets in shares of a model."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from coldbench.common.errors import ColdbenchError
from coldbench.publish.forecast import forecast
from coldbench.study.plan import Plan
from coldbench.study.specs import Arm, FeedSpec, PublishedTable
from coldbench.study.workloads import Gather, TextTokens

STUDY = """\
models:
  toy: {source: {standin: {architecture: qwen4exp, body: 64MiB, table: {rows: 65536}}}}
builds:
  kernels: {source: {folder: src}, targets: [gather]}
  engine: {source: {binaries: bin}}
  spare: {source: {binaries: spare}}
workloads:
  drawn: {driver: gather, trace: {zipf: {exponent: 1.5, count: 7}}}
  cycle: {driver: stream, args: [--tokens, 2]}
arms:
  - {name: plain, build: kernels, budget: 50%}
  - {name: ahead, build: kernels, args: [--x], budget: 64MiB}
  - {name: device, build: kernels, args: [--y]}
blocks: {cold: 2}
comparisons:
  ahead: {treatment: ahead, control: plain, metrics: [ns_per_gather, s_per_token, read_bytes]}
identity: {workload: drawn, without: device}
published:
  - source: 'a table'
    rows: [{arm: a, figure: '1.5 µs'}, {arm: b}]
"""
TEXT = STUDY.replace("{zipf: {exponent: 1.5, count: 7}}", "{text: ~/t.txt, tokenizer: engine}")


def plan(folder: Path, text: str = STUDY) -> Plan:
    path = folder / "s.yaml"
    path.write_text(text)
    return Plan(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ColdbenchError) as caught:
        plan(folder, text)
    return str(caught.value)


# --- feeds --------------------------------------------------------------------------------------


def test_gather_is_fed_its_trace_stream_the_layers_and_engines_nothing(tmp_path: Path) -> None:
    study = plan(
        tmp_path,
        STUDY.replace("  cycle:", "  bench: {driver: llama-bench}\n  cycle:"),
    )
    drawn = study.workloads["drawn"]
    assert isinstance(drawn, Gather)
    assert study.feed("drawn") == FeedSpec(trace=drawn.trace)
    assert study.feed("cycle") == FeedSpec(trace=None)
    assert study.feed("bench") is None
    for name in ("drawn", "cycle"):
        feed = study.feed(name)
        assert feed is not None
        assert (feed.files, feed.builds) == ([], [])
    spec = study.feed("drawn")
    assert spec is not None
    assert FeedSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_text_s_tokens_need_the_file_and_the_tokenizer_s_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(plan(tmp_path).builds) == ["kernels"]
    study = plan(tmp_path, TEXT)
    assert list(study.builds) == ["kernels", "engine"]
    feed = study.feed("drawn")
    assert feed is not None
    assert isinstance(feed.trace, TextTokens)
    assert (feed.files, feed.builds) == ([f"{tmp_path}/t.txt"], ["engine"])
    recorded = plan(tmp_path, STUDY.replace("{zipf: {exponent: 1.5, count: 7}}", "{recorded: r}"))
    feed = recorded.feed("drawn")
    assert feed is not None
    assert (feed.files, feed.builds) == (["r"], [])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tokenizer: engine", "tokenizer: engin", "workloads.drawn.trace.tokenizer: unknown build"),
        (", tokenizer: engine", "", "tokenizer is missing"),
        ("text: ~/t.txt, ", "", "exactly one of the keys zipf, recorded, text"),
        ("{text: ~/t.txt,", "{recorded: r, text: ~/t.txt,", "exactly one of the keys zipf"),
        ("driver: gather", "driver: stream", "unknown key workloads.drawn.trace"),
    ],
)
def test_traces_that_do_not_fit_are_refused(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    message = refusal(tmp_path, TEXT.replace(old, new))
    assert expected in message
    assert message.startswith(f"{tmp_path}/s.yaml:8: ")


@pytest.mark.parametrize("zipf", ["exponent: 0, count: 7", "exponent: 1, count: 0", "count: 7"])
def test_a_draw_of_nothing_is_refused(tmp_path: Path, zipf: str) -> None:
    message = refusal(tmp_path, STUDY.replace("exponent: 1.5, count: 7", zipf))
    assert "workloads.drawn.trace" in message
    assert message.startswith(f"{tmp_path}/s.yaml:8: ")


# --- claims and identity ------------------------------------------------------------------------


def test_a_kernel_s_claims_are_of_the_metrics_that_it_prints(tmp_path: Path) -> None:
    assert [(claim.workload, claim.metric) for claim in plan(tmp_path).claims] == [
        ("drawn", "ns_per_gather"),
        ("drawn", "read_bytes"),
        ("cycle", "s_per_token"),
        ("cycle", "read_bytes"),
    ]
    message = refusal(tmp_path, STUDY.replace("s_per_token, read", "prompt_tps, read"))
    assert "unknown metric 'prompt_tps'" in message


def test_the_workload_of_a_kernel_s_check_is_measured_and_errs_by_itself(tmp_path: Path) -> None:
    study = plan(tmp_path)
    assert list(study.workloads) == ["drawn", "cycle"]
    identity = study.identity("toy")
    assert identity is not None
    assert identity.driven == study.block("toy", "drawn", 1).driven
    assert identity.mutant == identity.driven.model_copy(
        update={"args": (*identity.driven.args, "--mutant")}
    )
    assert [arm.name for arm in identity.arms] == ["plain", "ahead", "plain-again"]
    both = plan(tmp_path, STUDY.replace("without: device", "without: [device, ahead]"))
    found = both.identity("toy")
    assert found is not None
    assert [arm.name for arm in found.arms] == ["plain", "plain-again"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("without: device", "mutant: x", "identity.mutant: is a prompt, and gather mutates itself"),
        ("without: device", "without: devise", "unknown arm 'devise'; did you mean device?"),
    ],
)
def test_what_a_kernel_s_check_does_not_take_is_refused(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert expected in refusal(tmp_path, STUDY.replace(old, new))


# --- budgets ------------------------------------------------------------------------------------


def test_a_share_becomes_bytes_with_the_model_and_bytes_stay(tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in plan(tmp_path).arms}
    assert arms["plain"].budget == 0.5
    assert arms["plain"].with_model(2**22 + 1).budget_bytes == 2**21
    assert arms["plain-again"].with_model(3 * 2**30).budget_bytes == 3 * 2**29
    assert arms["ahead"].with_model(1001) == arms["ahead"]
    assert arms["ahead"].budget_bytes == 64 * 2**20
    assert arms["device"].with_model(1001).budget_bytes is None
    with pytest.raises(ColdbenchError, match=r"arm plain: .* model of 2,097,150 bytes, is less"):
        arms["plain"].with_model(2**21 - 2)
    for text in ('{"name": "a", "build": "b", "budget": 1.0}', arms["plain"].model_dump_json()):
        # A share of 100% must not be read back as one byte.
        budget = Arm.model_validate_json(text).budget
        assert isinstance(budget, float)
    whole = next(iter(plan(tmp_path, STUDY.replace("50%", "100%")).arms))
    again = Arm.model_validate_json(whole.model_dump_json())
    assert again.with_model(2**22).budget_bytes == 2**22


@pytest.mark.parametrize("budget", ["0%", "-5%", "x%", "0", "half"])
def test_budgets_that_are_none_are_refused(tmp_path: Path, budget: str) -> None:
    message = refusal(tmp_path, STUDY.replace("budget: 50%", f"budget: {budget}"))
    assert message.startswith(f"{tmp_path}/s.yaml:11: arms.")
    assert "budget" in message


def test_the_forecast_tells_budgets_and_counts_the_runs_of_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDBENCH_CACHE", str(tmp_path / "cache"))
    lines = [line.strip() for line in forecast(plan(tmp_path)).splitlines()]

    def told(name: str) -> str:
        found = next(line for line in lines if re.search(rf"(^| ){name}  ", line))
        return re.split(" {2,}", found)[-1]

    assert told("plain") == "kernels in 50% of the model"
    assert told("ahead") == "kernels --x in 64 MiB"
    assert told("device") == "kernels --y"
    assert told("plain-again") == "the same as plain (A/A pair)"
    # 2 blocks x 2 workloads x 4 arms; three arms compute, one repeats and one errs.
    assert told("runs") == "16 cold, 5 identity"


# --- what others published ----------------------------------------------------------------------


def test_published_rows_reach_the_tables_and_no_job(tmp_path: Path) -> None:
    study = plan(tmp_path)
    assert study.presentation().published == (
        PublishedTable(source="a table", rows=({"arm": "a", "figure": "1.5 µs"}, {"arm": "b"})),
    )
    bare = plan(tmp_path, STUDY[: STUDY.index("published:")])
    assert bare.presentation().published == ()
    assert bare.block("toy", "drawn", 1) == study.block("toy", "drawn", 1)
    assert bare.identity("toy") == study.identity("toy")
    assert "rows" in refusal(tmp_path, STUDY[: STUDY.index("    rows:")] + "    rows: []\n")


def test_a_spec_has_no_key_that_it_does_not_know() -> None:
    with pytest.raises(ValidationError):
        FeedSpec.model_validate({"tracé": None})
