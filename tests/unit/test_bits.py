"""Settings that change bits: held equal within an identity group, or named."""

from pathlib import Path

import pytest

from coldbench.analysis.identity import IdentityRun, judge
from coldbench.drivers.bits import bit_settings, differing
from coldbench.study.plan import Plan
from tests.unit.fabricated_runs import fabricated_run
from tests.unit.study_checks import told

STUDY = """\
models:
  toy: {source: {path: toy.gguf}}
builds:
  new: {source: {binaries: bin/new}}
  old: {source: {binaries: bin/old}}
workloads:
  run: {driver: llama-batched-bench, args: [-npp, 64, -ntg, 8, -npl, 1]}
  check: {driver: llama-results, prompt: one, args: [-b, 512, -ub, 512]}
factors:
  lazy: {on: [--lazy-mode, on], off: [--lazy-mode, off]}
  mode: {plain: [], other: [-ub, 64]}
arms:
  matrix: {build: [new, old], lazy: [on, off], mode: [plain, other]}
blocks: {cold: 1, warm: 0}
identity: {workload: check, mutant: two}
"""
OTHER = "other: [-ub, 64]"
TEXT = "check: {driver: llama-completion, prompt: one, tokens: 300}"
LOGITS = "check: {driver: llama-results, prompt: one, args: [-b, 512, -ub, 512]}"


def checked(folder: Path, *changes: tuple[str, str]) -> str:
    return told(folder, STUDY, *changes)


def test_the_last_flag_counts_and_wins_over_its_variable() -> None:
    found = bit_settings(
        ["-ub", "512", "--ubatch-size", "64", "--cache_type_k", "q8_0", "-nr", "-fa", "-t", "2"],
        {"LLAMA_ARG_UBATCH": "8", "LLAMA_ARG_BATCH": "16"},
    )
    assert {flag: value for flag, value in found.items() if value} == {
        "-b": "16",
        "-ub": "64",
        "-fa": "on",
        "-ctk": "q8_0",
        "-ctv": "f16",
        "-t": "2",
        "--repack": "off",
    }


@pytest.mark.parametrize(
    ("args", "environment", "value"),
    [
        ("-fa on", "", "on"),
        ("-fa 1", "", "on"),
        ("--flash-attn enabled", "", "on"),
        ("-fa", "", "on"),  # older versions: a switch
        ("-fa -c 64", "", "on"),
        ("-c 64 -fa", "off", "on"),
        ("-fa 0", "", "off"),
        ("-fa disabled", "on", "off"),
        ("-fa -1", "", "auto"),
        ("-fa auto", "", "auto"),
        ("", "false", "off"),
        ("", "", ""),
    ],
)
def test_words_of_one_meaning_are_one_value(args: str, environment: str, value: str) -> None:
    found = bit_settings(args.split(), {"LLAMA_ARG_FLASH_ATTN": environment})
    assert found["-fa"] == value


def test_a_default_that_is_written_out_is_no_other_setting() -> None:
    written_out = ["-ctk", "f16", "--cache-type-v", "f16", "--repack"]
    assert bit_settings(written_out, {}) == bit_settings([], {})
    assert bit_settings([], {"LLAMA_ARG_REPACK": "0"})["--repack"] == "off"


def test_what_arms_do_not_share_is_told_with_its_values() -> None:
    assert differing(
        {
            "a": bit_settings(["-ub", "8", "-b", "8"], {}),
            "b": bit_settings(["-b", "8"], {}),
            "c": bit_settings(["-b", "8"], {"LLAMA_ARG_UBATCH": "8"}),
        }
    ) == {"-ub": "8: a, c; default: b"}


def test_a_group_whose_arms_compute_other_bits_is_refused_with_the_factor(tmp_path: Path) -> None:
    message = checked(tmp_path)
    assert message.startswith(f"{tmp_path}/s.yaml:15: identity: -ub changes the bits")
    assert "(512: new-lazy-on-mode-plain, " in message
    assert "; 64: new-lazy-on-mode-other, " in message
    assert message.endswith("hold it equal, or add mode to group_by")
    grouped = ("mutant: two", "mutant: two, group_by: [mode]")
    assert checked(tmp_path, grouped) == ""


def test_an_arm_outside_the_matrix_has_no_factor_to_group_by(tmp_path: Path) -> None:
    wide = "include: [{name: wide, build: new, args: [-ub, 8]}]\nblocks:"
    message = checked(tmp_path, (OTHER, "other: [-c, 64]"), ("blocks:", f"  {wide}"))
    assert message.endswith("make it a factor of the matrix and add that to group_by")
    without = ("mutant: two", "mutant: two, without: wide")
    assert not checked(tmp_path, (OTHER, "other: [-c, 64]"), ("blocks:", f"  {wide}"), without)


@pytest.mark.parametrize(
    ("workload", "level", "flag"),
    [
        (LOGITS, "[-b, 64]", "-b"),
        (LOGITS, "[-fa, off]", "-fa"),
        (LOGITS, "[-ctk, q8_0]", "-ctk"),
        (LOGITS, "[-ctv, q8_0]", "-ctv"),
        (LOGITS, "[--no-repack]", "--repack"),
        (LOGITS, "{intent: {repack: off}}", "--repack"),
        (LOGITS, "{intent: {repack: on}}", ""),
        (
            LOGITS.replace("512]", "512], environment: {LLAMA_ARG_CACHE_TYPE_K: q8_0}"),
            "[-c, 9]",
            "",
        ),
        (
            LOGITS.replace("512]", "512], environment: {LLAMA_ARG_CACHE_TYPE_K: q8_0}"),
            "[-ctk, q8_0]",
            "",
        ),
        (LOGITS, "{environment: {LLAMA_ARG_UBATCH: 8}}", ""),  # the workload's flag wins
        (LOGITS, "{environment: {LLAMA_ARG_FLASH_ATTN: off}}", "-fa"),
        (LOGITS, "[-ub, 512, --load-mode, none]", ""),
        (LOGITS, "[-t, 1, -tb, 2, -ngl, 0]", ""),
        (TEXT, "[-ub, 8]", "-ub"),
        (TEXT, "[-t, 1]", "-t"),
        (TEXT.replace("300", "252"), "[-t, 1]", ""),  # 1 + 3 + 252 positions
        (TEXT.replace("300", "253"), "[-t, 1]", "-t"),
        (TEXT.replace("300", "300, args: [-fa, off]"), "[-t, 1]", ""),
    ],
)
def test_which_settings_a_group_must_share(
    tmp_path: Path, workload: str, level: str, flag: str
) -> None:
    message = checked(tmp_path, (LOGITS, workload), (OTHER, f"other: {level}"))
    assert (f"identity: {flag} changes" in message) if flag else (message == "")


def test_logits_are_an_identity_workload_alone(tmp_path: Path) -> None:
    plan = tmp_path / "s.yaml"
    plan.write_text(STUDY)
    assert [*Plan(plan).workloads] == ["run"]
    spec = Plan(plan).identity("toy")
    assert spec is not None
    assert (spec.driven.prompt, spec.mutant.prompt) == ("one", "two")  # type: ignore[union-attr]
    message = checked(tmp_path, ("identity: {workload: check, mutant: two}", ""))
    assert "s.yaml:8: workloads.check: llama-results prints no figures" in message
    assert "needs the key mutant" in checked(tmp_path, (", mutant: two", ""))


def test_where_outputs_differ_what_else_was_not_equal_is_named() -> None:
    def run(arm: str, digest: str, *args: str, variant: str = "") -> IdentityRun:
        made = fabricated_run(arm, 0, state="unmeasured", digest=digest, argv=["p", *args])
        return IdentityRun("model", arm, (), variant, made)

    controls = [run("a", "x", variant="repeat"), run("a", "y", variant="mutant")]
    sound = judge([run("a", "x", "-t", "2"), run("b", "x", "-t", "1"), *controls])
    assert [sound["model", arm].ok for arm in ("a", "b")] == [True, True]
    for flag in ("-ngl", "-ot"):
        told = judge([run("a", "x"), run("b", "z", flag, "9"), *controls])["model", "b"].reason
        assert f"{flag} " in told
    found = judge([run("a", "x", "-t", "2"), run("b", "z", "-t", "1"), *controls])
    assert (
        found["model", "b"].reason
        == "texts differ: x of a; z of b; not held equal: -t (2: a; 1: b)"
    )
    equal = judge([run("a", "x", "-t", "2"), run("b", "z", "-t", "2"), *controls])
    assert equal["model", "b"].reason == "texts differ: x of a; z of b"
