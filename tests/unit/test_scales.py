"""Scales of a study: the one that `scale` names is laid over the study, and all are checked."""

import re
from pathlib import Path

import pytest

from coldbench.cli import main
from coldbench.common.errors import ColdbenchError
from coldbench.study.plan import Plan
from coldbench.study.reading import read_study

ROOT = Path(__file__).parents[2]
STUDY = """\
scale: small
scales:
  small:
    models:
      toy: {source: {path: small.gguf}}
    blocks: {cold: 3}
  large:
    models:
      toy: {source: {path: large.gguf}}
      more: {source: {path: more.gguf}}
    builds: {new: {source: {binaries: large}}}
    workloads: {run: {driver: llama-bench, args: [-p, 512]}}
    factors: {mode: {mmap: [-mmp, 1], none: [-mmp, 0, -t, 9]}}
    comparisons:
      none: {treatment: new-mode-none, control: new-mode-mmap, margin: 5%}
models:
  kept: {source: {path: kept.gguf}}
builds:
  new: {source: {binaries: small}}
workloads:
  run: {driver: llama-bench, args: [-p, 64]}
factors:
  mode: {mmap: [-mmp, 1], none: [-mmp, 0]}
  threads: {two: [-t, 2]}
arms: {matrix: {build: new, mode: [mmap, none], threads: two}, name: "new-mode-{mode}"}
blocks: {cold: 8, warm: 8, until: {half_width: 2%, max: 12}}
comparisons:
  none: {treatment: new-mode-none, control: new-mode-mmap}
"""
LARGE = STUDY.replace("scale: small", "scale: large")


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ColdbenchError) as caught:
        Plan(write(folder, text))
    return str(caught.value)


def line(text: str, words: str) -> int:
    """Return the number of the line that holds `words`, which only one does."""
    (found,) = [number for number, each in enumerate(text.splitlines(), 1) if words in each]
    return found


def test_the_chosen_scale_adds_entries_and_takes_the_place_of_blocks(tmp_path: Path) -> None:
    plan = Plan(write(tmp_path, STUDY))
    paths = {name: model.source.path for name, model in plan.models.items()}  # type: ignore[union-attr]
    assert paths == {"kept": "kept.gguf", "toy": "small.gguf"}
    assert (plan.file.blocks.cold, plan.file.blocks.warm, plan.file.blocks.until) == (3, 0, None)
    assert plan.workloads["run"].args == ("-p", "64")
    assert plan.builds["new"].source.binaries == "small"  # type: ignore[union-attr]
    assert {claim.margin for claim in plan.claims} == {0.03}


def test_another_scale_replaces_entries_of_the_same_name_whole(tmp_path: Path) -> None:
    plan = Plan(write(tmp_path, LARGE))
    assert list(plan.models) == ["kept", "toy", "more"]
    assert plan.models["toy"].source.path == "large.gguf"  # type: ignore[union-attr]
    assert plan.builds["new"].source.binaries == "large"  # type: ignore[union-attr]
    assert plan.workloads["run"].args == ("-p", "512")
    arms = {arm.name: arm.args for arm in plan.arms if arm.twin_of is None}
    assert arms == {
        "new-mode-mmap": ("-mmp", "1", "-t", "2"),
        "new-mode-none": ("-mmp", "0", "-t", "9", "-t", "2"),
    }
    assert (plan.file.blocks.cold, plan.file.blocks.warm) == (8, 8)
    assert {claim.margin for claim in plan.claims} == {0.05}


def test_a_factor_is_replaced_with_all_its_levels(tmp_path: Path) -> None:
    text = LARGE.replace("none: [-mmp, 0, -t, 9]", "wide: [-t, 64]")
    message = refusal(tmp_path, text)
    assert "unknown level of mode 'none'" in message
    assert "known: mmap, wide" in message or "did you mean" in message
    # the scale that is not selected is expanded too, and then the message names it
    other = refusal(tmp_path, text.replace("scale: large", "scale: small"))
    assert other == f"{message} (at the scale large)"


def test_sections_may_come_from_scales_alone(tmp_path: Path) -> None:
    head, tail = STUDY.split("models:\n  kept", 1)
    text = head + tail.split("\n", 1)[1]
    assert list(Plan(write(tmp_path, text)).models) == ["toy"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("scale: small", "scale: smal", "study.yaml:1: scale: unknown scale 'smal'; did you mean"),
        ("scale: small\n", "", "study.yaml:1: scale: the key is missing; "),
        ("scale: small", "scale: [small]", "study.yaml:1: scale: "),
        ("scale: small", "scale: {small: x}", "study.yaml:1: scale: "),
        ("scale: small", "scale:", "study.yaml:1: scale: unknown scale ''"),
    ],
)
def test_a_scale_that_is_not_there_is_named(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    message = refusal(tmp_path, STUDY.replace(old, new, 1))
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize("scales", ["[a, b]", "one", "{}", "{small: [a]}", "{small: x}", "~"])
def test_scales_that_are_no_mapping_are_refused(tmp_path: Path, scales: str) -> None:
    rest = STUDY[STUDY.index("models:\n  kept") :]
    message = refusal(tmp_path, f"scale: small\nscales: {scales}\n{rest}")
    assert message == (
        f"{tmp_path}/study.yaml:2: scales: needs a mapping from names to sections of the study"
    )


def test_a_scale_without_scales_is_refused(tmp_path: Path) -> None:
    rest = STUDY[STUDY.index("models:\n  kept") :]
    message = refusal(tmp_path, f"scale: small\n{rest}")
    assert message.startswith(f"{tmp_path}/study.yaml:1: scales: needs a mapping")


@pytest.mark.parametrize("chosen", ["small", "large"])
@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [
        ("{path: large.gguf}", "{paht: large.gguf}", "models.toy.source"),
        ("{cold: 3}", "{cold: 0}", "blocks: a study needs at least one cold or warm block"),
        ("args: [-p, 512]", "arg: [-p, 512]", "workloads.run.arg; did you mean args?"),
        ("margin: 5%", "margin: wide", "comparisons.none.margin"),
        ("none, control: new-mode-mmap, m", "non, control: new-mode-mmap, m", "unknown arm"),
    ],
)
def test_every_scale_is_checked_and_a_fault_has_its_line(
    tmp_path: Path, chosen: str, good: str, bad: str, expected: str
) -> None:
    text = (LARGE if chosen == "large" else STUDY).replace(good, bad, 1)
    message = refusal(tmp_path, text)
    fault = next(each for each in message.splitlines() if expected in each)
    assert fault.startswith(f"{tmp_path}/study.yaml:{line(text, bad)}: ")


def test_an_unknown_section_of_a_scale_is_named_with_its_line(tmp_path: Path) -> None:
    text = STUDY.replace("    builds: {new:", "    bilds: {new:")
    message = refusal(tmp_path, text)
    expected = f"study.yaml:{line(text, 'bilds')}: unknown key scales.large.bilds; did you mean "
    assert expected + "builds?" in message
    # what is no part of a scale is not silently taken for one
    message = refusal(
        tmp_path, STUDY.replace("    builds: {new:", "    seed: 3\n    builds: {new:")
    )
    assert "unknown key scales.large.seed" in message


def test_what_does_not_fit_together_is_told_with_the_scale_s_line(tmp_path: Path) -> None:
    text = LARGE.replace("treatment: new-mode-none, control: new-mode-mmap, margin", "TWO", 1)
    text = text.replace("TWO", "treatment: gone, control: new-mode-mmap, margin")
    message = refusal(tmp_path, text)
    assert message.startswith(f"{tmp_path}/study.yaml:{line(text, 'gone')}: comparisons.none.treat")


def test_a_section_that_is_no_mapping_is_not_lost_under_a_scale_s(tmp_path: Path) -> None:
    text = STUDY.replace("models:\n  kept: {source: {path: kept.gguf}}", "models: [kept]")
    message = refusal(tmp_path, text)
    assert f"study.yaml:{line(text, 'models: [kept]')}: models: " in message


def test_a_study_without_scales_is_as_it_was(tmp_path: Path) -> None:
    plain = STUDY[STUDY.index("models:\n  kept") :]
    assert list(read_study(write(tmp_path, plain)).models) == ["kept"]


# --- the studies of this repository --------------------------------------------------------------

STUDIES = sorted(
    path
    for path in (ROOT / "config" / "studies").glob("*.yaml")
    if not path.name.endswith(".lock.yaml")
)
SCALED = [path for path in STUDIES if re.search("^scales:", path.read_text(), re.MULTILINE)]


def scales_of(path: Path) -> list[str]:
    return list(read_study(path).scales)


def test_most_studies_have_two_scales() -> None:
    assert len(SCALED) >= 8
    for path in SCALED:
        assert scales_of(path) == ["here", "published"], path.name


@pytest.mark.parametrize("scale", ["here", "published"])
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_each_study_can_be_planned_at_each_scale(
    path: Path,
    scale: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = path.read_text()
    if path in SCALED:
        text, changed = re.subn(r"(?m)^scale: \w+$", f"scale: {scale}", text)
        assert changed == 1
    copy = tmp_path / path.name
    copy.write_text(text)
    # patches and token files are named from the repository's root
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLDBENCH_CACHE", str(tmp_path / "cache"))
    main(["plan", str(copy)])
    printed = capsys.readouterr().out
    plan = Plan(copy)
    cells = re.search(r"^cells +(\d+)", printed, re.MULTILINE)
    assert cells is not None
    states = (plan.file.blocks.cold > 0) + (plan.file.blocks.warm > 0)
    lanes = len(plan.models) * len(plan.workloads)
    assert int(cells[1]) == lanes * states * len(plan.arms)
    assert plan.file.scale == (scale if path in SCALED else None)
    for name in (*plan.models, *plan.builds, *plan.workloads, *(arm.name for arm in plan.arms)):
        assert f" {name} " in printed
