"""What a study expands to."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from coldbench.common.errors import ColdbenchError
from coldbench.study.find import find_study
from coldbench.study.plan import Plan
from coldbench.study.schema import study_schema
from coldbench.study.settings import open_study

ROOT = Path(__file__).parents[2]
MATRIX = """\
title: a title
models:
  toy: {label: a toy, source: {path: toy.gguf}}
  other: {source: {path: other.gguf}}
builds:
  new: {source: {binaries: bin/new}}
  old: {source: {binaries: bin/old}}
workloads:
  run: {driver: llama-batched-bench, args: [-npp, 512, -ntg, 128, -npl, 1]}
  text: {driver: llama-completion, prompt: one}
factors:
  lazy:
    on: [--lazy-mode, on]
    off: {args: [--lazy-mode, off], for_build: {old: [--no-lazy]}}
  mode:
    mmap: [--load-mode, mmap]
    none: [--load-mode, none]
arms:
  matrix: {build: [new, old], lazy: [on, off], mode: [mmap, none]}
  exclude: [{build: old, mode: none}]
  include: [{name: twin, aa_of: new-lazy-on-mode-mmap}]
blocks: {cold: 6, warm: 3}
comparisons:
  claim:
    treatment: new-lazy-on-mode-mmap
    control: old-lazy-on-mode-mmap
identity: {workload: text, mutant: two}
"""


def plan(folder: Path, text: str = MATRIX) -> Plan:
    path = folder / "s.yaml"
    path.write_text(text)
    return Plan(path)


def refusal(folder: Path, old: str, new: str) -> str:
    assert old in MATRIX
    with pytest.raises(ColdbenchError) as caught:
        plan(folder, MATRIX.replace(old, new))
    return str(caught.value)


def test_a_matrix_expands_less_what_is_excluded_plus_what_is_included(tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in plan(tmp_path).arms}
    assert list(arms) == [
        "new-lazy-on-mode-mmap",
        "new-lazy-on-mode-none",
        "new-lazy-off-mode-mmap",
        "new-lazy-off-mode-none",
        "old-lazy-on-mode-mmap",
        "old-lazy-off-mode-mmap",
        "twin",
    ]
    assert arms["new-lazy-off-mode-none"].args == ("--lazy-mode", "off", "--load-mode", "none")
    assert arms["old-lazy-off-mode-mmap"].args == ("--no-lazy", "--load-mode", "mmap")


def test_a_twin_repeats_its_arm_under_another_name(tmp_path: Path) -> None:
    study = plan(tmp_path)
    arms = {arm.name: arm for arm in study.arms}
    original = arms["new-lazy-on-mode-mmap"]
    assert arms["twin"].args == original.args
    assert arms["twin"].build == original.build
    assert study.aa_pairs == (("new-lazy-on-mode-mmap", "twin"),)


NO_TWIN = MATRIX.replace("  include: [{name: twin, aa_of: new-lazy-on-mode-mmap}]\n", "")


def test_a_study_without_an_aa_pair_gets_a_twin_of_the_first_comparison_s_control(
    tmp_path: Path,
) -> None:
    study = plan(tmp_path, NO_TWIN)
    assert study.aa_pairs == (("old-lazy-on-mode-mmap", "old-lazy-on-mode-mmap-again"),)
    assert study.arms[-1].name == "old-lazy-on-mode-mmap-again"
    original = next(arm for arm in study.arms if arm.name == "old-lazy-on-mode-mmap")
    assert study.arms[-1] == original.model_copy(
        update={"name": "old-lazy-on-mode-mmap-again", "twin_of": original.name}
    )
    without = NO_TWIN[: NO_TWIN.index("comparisons")] + NO_TWIN[NO_TWIN.index("identity") :]
    assert plan(tmp_path, without).aa_pairs == (
        ("new-lazy-on-mode-mmap", "new-lazy-on-mode-mmap-again"),
    )


def test_the_twin_s_name_is_free_and_no_longer_than_a_name_may_be(tmp_path: Path) -> None:
    long = "x" * 64
    arms = [
        f"  - {{name: {long}, build: new}}",
        f"  - {{name: {long[:58]}-again, build: old}}",
    ]
    head, tail = NO_TWIN[: NO_TWIN.index("arms:")], NO_TWIN[NO_TWIN.index("blocks:") :]
    tail = tail[: tail.index("comparisons")]
    text = "\n".join([head.rstrip(), "arms:", *arms, tail]).replace(
        "  text: {driver: llama-completion, prompt: one}\n", ""
    )
    ((original, twin),) = plan(tmp_path, text).aa_pairs
    assert (original, twin) == (long, f"{long[:57]}-again2")


UNTIL = MATRIX.replace(
    "blocks: {cold: 6, warm: 3}",
    "blocks: {cold: 6, warm: 3, until: {half_width: 2.5%, max: 12}}",
)


def test_blocks_until_are_added_after_the_fixed_ones_and_leave_these_alone(
    tmp_path: Path,
) -> None:
    fixed, study = plan(tmp_path), plan(tmp_path, UNTIL)
    assert fixed.until("toy", "run") is None
    assert [study.block("toy", "run", n) for n in range(1, 7)] == [
        fixed.block("toy", "run", n) for n in range(1, 7)
    ]
    until = study.until("toy", "run")
    assert until is not None
    assert (until.first.block, until.last, until.half_width) == (7, 12, 0.025)
    assert [(claim.model, claim.state) for claim in until.claims] == [
        ("toy", "cold"),
        ("toy", "warm"),
    ]


def test_blocks_until_must_allow_more_than_are_measured_anyway(tmp_path: Path) -> None:
    with pytest.raises(ColdbenchError, match=r"until\.max must exceed"):
        plan(tmp_path, UNTIL.replace("max: 12", "max: 6"))


def test_blocks_carry_the_states_that_still_want_one(tmp_path: Path) -> None:
    study = plan(tmp_path)
    assert study.blocks == 6
    assert study.block("toy", "run", 3).states == ("cold", "warm")
    assert study.block("toy", "run", 4).states == ("cold",)


def test_claims_spread_over_models_and_states(tmp_path: Path) -> None:
    claims = plan(tmp_path).claims
    assert [(claim.model, claim.state, claim.metric) for claim in claims] == [
        ("toy", "cold", "prompt_tps"),
        ("toy", "warm", "prompt_tps"),
        ("other", "cold", "prompt_tps"),
        ("other", "warm", "prompt_tps"),
    ]


def test_the_identity_workload_is_not_measured(tmp_path: Path) -> None:
    study = plan(tmp_path)
    assert list(study.workloads) == ["run"]
    identity = study.identity("toy")
    assert identity is not None
    assert identity.mutant == identity.driven.model_copy(update={"prompt": "two"})


def test_labels_titles_and_comments_leave_every_spec_as_it_was(tmp_path: Path) -> None:
    before = plan(tmp_path)
    after = plan(
        tmp_path,
        "# a comment\n"
        + MATRIX.replace("a title", "another")
        .replace("a toy", "the toy")
        .replace("run: {", "run: {label: a run, "),
    )
    assert before.block("toy", "run", 1) == after.block("toy", "run", 1)
    assert before.identity("toy") == after.identity("toy")


def test_more_blocks_leave_the_earlier_ones_as_they_were(tmp_path: Path) -> None:
    before = plan(tmp_path).block("toy", "run", 3)
    assert plan(tmp_path, MATRIX.replace("cold: 6", "cold: 9")).block("toy", "run", 3) == before


def test_equal_arms_are_refused_unless_they_are_an_aa_pair(tmp_path: Path) -> None:
    message = refusal(
        tmp_path,
        "{name: twin, aa_of: new-lazy-on-mode-mmap}",
        "{name: twin, build: new, args: [--lazy-mode, on, --load-mode, mmap]}",
    )
    assert "twin and new-lazy-on-mode-mmap are the same" in message
    assert "aa_of: new-lazy-on-mode-mmap" in message


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("lazy: [on, off],", "lazy: [on, of],", "unknown level of lazy 'of'; did you mean off?"),
        ("mode: [mmap, none]}", "mod: [mmap]}", "unknown factor 'mod'; did you mean mode?"),
        ("build: [new, old]", "build: [new, odl]", "unknown build 'odl'; did you mean old?"),
        ("{build: old, mode: none}", "{build: old, mode: non}", "did you mean none?"),
        ("control: old", "control: ald", "did you mean old-lazy-on-mode-mmap?"),
        ("aa_of: new-", "aa_of: nev-", "did you mean new-lazy-on-mode-mmap?"),
        ("workload: text", "workload: txet", "unknown workload 'txet'; did you mean text?"),
        ("workload: text", "workload: run", "needs a workload of llama-completion"),
        ("mutant: two", "mutant: one", "must differ"),
        ("for_build: {old:", "for_build: {odl:", "unknown build 'odl'"),
        ("old: {source: {binaries: bin/old}}", "old: {like: odl}", "unknown build 'odl'"),
        ("old: {source: {binaries: bin/old}}", "old: {like: old}", "goes round in a circle"),
        (
            "old: {source: {binaries: bin/old}}",
            "old: {like: new, cmake: {A: 1}}",
            "take no patches",
        ),
        ("old: {source: {binaries: bin/old}}", "old: {targets: [x]}", "needs a source"),
        ("old: {source: {binaries: bin/old}}", "old: {source: {folder: x}}", "needs targets"),
        ("matrix: {build: [new, old], ", "matrix: {", "the factor build"),
        ("  mode:\n", "  build: {new: [-x]}\n  mode:\n", "its levels stand under builds; rename"),
        ("  mode:\n", "  model: {toy: [-x]}\n  mode:\n", "factors.model: is no factor of one's"),
        ("  mode:\n", "  workload: {a: []}\n  mode:\n", "its levels stand under workloads"),
        ("none: [--load", "none: {budget: 0%}\n    one: [--load", "above 0% and at most 10000%"),
        ("none: [--load", "none: {budget: 10001%}\n    one: [--load", "above 0% and at most"),
        ("none: [--load", "none: {budget: 1023KiB}\n    one: [--load", "a budget is at least 1MiB"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    message = refusal(tmp_path, old, new)
    assert expected in message
    assert message.startswith(f"{tmp_path}/s.yaml:")


def test_like_takes_what_is_not_given(tmp_path: Path) -> None:
    text = MATRIX.replace(
        "new: {source: {binaries: bin/new}}",
        "new: {source: {folder: src}, targets: [a], cmake: {X: OFF}}",
    ).replace(
        "old: {source: {binaries: bin/old}}", "old: {like: new, label: o, patches: [p.patch]}"
    )
    old = plan(tmp_path, text).builds["old"]
    assert old.targets == ("a",)
    assert old.cmake == {"X": "OFF"}
    assert old.patches == ("p.patch",)


def test_builds_that_no_arm_uses_are_left_out(tmp_path: Path) -> None:
    text = MATRIX.replace("old: {", "spare: {source: {binaries: x}}\n  old: {")
    assert list(plan(tmp_path, text).builds) == ["new", "old"]


def test_studies_are_found_by_name_or_path(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "studies"
    folder.mkdir(parents=True)
    (folder / "demo.yaml").write_text(MATRIX)
    assert find_study("demo", tmp_path) == folder / "demo.yaml"
    assert find_study(str(folder / "demo.yaml"), Path("elsewhere")) == folder / "demo.yaml"
    with pytest.raises(ColdbenchError, match=r"did you mean demo\?"):
        find_study("dmeo", tmp_path)
    with pytest.raises(ColdbenchError, match="no such study file"):
        find_study("absent.yaml", tmp_path)


def test_settings_are_strict(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "studies"
    folder.mkdir(parents=True)
    (folder / "demo.yaml").write_text(MATRIX)
    settings, opened = open_study({"study": "demo", "results": "out"}, tmp_path)
    assert (settings.results, opened.name) == ("out", "demo")
    with pytest.raises(ColdbenchError, match=r"unknown setting; did you mean study\?"):
        open_study({"stduy": "demo"}, tmp_path)
    with pytest.raises(ColdbenchError, match="quote it"):
        open_study({"study": float("inf")}, tmp_path)
    with pytest.raises(ColdbenchError, match="quote it"):
        open_study({"study": "demo", "results": 7}, tmp_path)


def test_the_committed_studies_expand() -> None:
    for path in sorted((ROOT / "config" / "studies").glob("*.yaml")):
        if path.name.endswith(".lock.yaml"):
            continue
        assert Plan(path).arms


def test_the_committed_schema_is_current() -> None:
    committed = json.loads((ROOT / "config" / "study.schema.json").read_text())
    assert committed == study_schema(), "run: coldbench schema > config/study.schema.json"


def test_editors_take_every_committed_study_and_tell_slips() -> None:
    def as_json(value: Any) -> Any:
        """YAML's keys may be numbers; JSON's, and so an editor's, are texts."""
        if isinstance(value, dict):
            return {str(key): as_json(inside) for key, inside in value.items()}
        return [as_json(one) for one in value] if isinstance(value, list) else value

    validator = Draft202012Validator(study_schema())
    for path in sorted((ROOT / "config" / "studies").glob("*.yaml")):
        study = as_json(YAML(typ="safe").load(path))
        assert [error.message for error in validator.iter_errors(study)] == [], path
    study["blocks"]["colds"] = 3
    study["arms"] = {"matrix": {"build": "*", "threads": ["*"]}}
    told = [error.json_path for error in validator.iter_errors(study)]
    assert sorted(told) == ["$.arms", "$.blocks"]


def test_every_key_of_the_schema_is_documented() -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "config" / "README.md").read_text(), flags=re.DOTALL)
    documented = {word for code in re.findall(r"`([^`]+)`", text) for word in code.split()}
    documented = {word.strip("{},:") for word in documented}
    schema = study_schema()
    sections = [schema, *schema["$defs"].values()]
    keys = {key for section in sections for key in section.get("properties", {})}
    assert keys - documented == set()
