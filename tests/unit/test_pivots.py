"""Pivots: arms by their levels, one to a place, and the same figures as in the main table."""

import re
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.publish.markdown import markdown
from coldbench.publish.matrix import ArmRow, Column, Figure, Matrix, Runs, Table
from coldbench.publish.pivots import needed, pivot_tables
from coldbench.publish.study import publish_matrix
from coldbench.records import Run
from coldbench.study.plan import Plan
from coldbench.study.specs import PivotTile

from .fabricated_runs import fabricated_run

STUDY = """\
models: {m: {source: {path: m.gguf}}, w: {source: {path: w.gguf}}}
builds: {old: {source: {binaries: old}}, new: {source: {binaries: new}}}
workloads: {bench: {driver: llama-bench}}
factors:
  mode: {none: [-mmp, 0], mmap: [-mmp, 1]}
  lazy: {on: [-lzm, on], off: [-lzm, off]}
arms:
  matrix: {build: [old, new], mode: [none, mmap], lazy: [on, off]}
  exclude:
    - {build: old, mode: none, lazy: on}
  include:
    - {name: apart, build: old, args: [-x, 1], levels: {mode: none, lazy: on}}
    - {name: loose, build: old, args: [-y, 1]}
blocks: {cold: 3}
pivots:
  modes:
    rows: [model, mode]
    columns: [lazy]
    where: {build: new}
    metrics: prompt_tps
"""


def plan(folder: Path, text: str) -> Plan:
    path = folder / "study.yaml"
    path.write_text(text)
    return Plan(path)


def tile(arm: str, model: str = "m") -> PivotTile:
    return PivotTile(model=model, workload="bench", arm=arm)


def test_arms_stand_where_their_levels_are(tmp_path: Path) -> None:
    (pivot,) = plan(tmp_path, STUDY).pivots
    assert (pivot.row_axes, pivot.column_axes) == (("model", "mode"), ("lazy",))
    assert pivot.rows == (("m", "none"), ("m", "mmap"), ("w", "none"), ("w", "mmap"))
    assert pivot.columns == (("on",), ("off",))
    assert pivot.states == ("cold",)
    assert pivot.tiles == tuple(
        tuple(tile(f"new-mode-{mode}-lazy-{lazy}", model) for lazy in ("on", "off"))
        for model in ("m", "w")
        for mode in ("none", "mmap")
    )


def test_a_listed_arm_takes_the_place_of_an_excluded_one(tmp_path: Path) -> None:
    text = STUDY.replace("{build: new}", "{build: old, model: w}").replace(
        "rows: [model, mode]", "rows: mode"
    )
    (pivot,) = plan(tmp_path, text).pivots
    assert pivot.tiles[0] == (tile("apart", "w"), tile("old-mode-none-lazy-off", "w"))
    without = text.replace("levels: {mode: none, lazy: on}", "levels: {}")
    (pivot,) = plan(tmp_path, without).pivots
    assert pivot.tiles[0] == (None, tile("old-mode-none-lazy-off", "w"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "rows: [model, mode]",
            "rows: [model, mood]",
            "17: pivots.modes.rows: unknown factor 'mood'; did you mean mode?",
        ),
        (
            "rows: [model, mode]",
            "rows: mode",
            "m bench new-mode-none-lazy-on and w bench new-mode-none-lazy-on fall in one place; "
            "name model in rows",
        ),
        (
            "where: {build: new}",
            "where: {}",
            "fall in one place; name build in rows, columns or where",
        ),
        (
            "where: {build: new}",
            "where: {build: now}",
            "19: pivots.modes.where.build: unknown level of build 'now'; did you mean new?",
        ),
        ("columns: [lazy]", "columns: [lazy, mode]", "16: pivots.modes: mode stands twice"),
        (
            "metrics: prompt_tps",
            "metrics: prompt_tbs",
            "20: pivots.modes.metrics: unknown metric 'prompt_tbs'; did you mean prompt_tps?",
        ),
        (
            "metrics: prompt_tps",
            "metrics: prompt_tps\n    states: warm",
            "pivots.modes.states: none of them is measured",
        ),
        (
            "levels: {mode: none",
            "levels: {mode: nine",
            "12: arms.include.0.levels.mode: unknown level of mode 'nine'",
        ),
        (
            "levels: {mode: none",
            "levels: {build: none",
            "12: arms.include.0.levels.build: is not for an arm to say",
        ),
        (
            "levels: {mode: none",
            "levels: {model: none",
            "12: arms.include.0.levels.model: is not for an arm to say",
        ),
        (
            "levels: {mode: none",
            "levels: {workload: none",
            "12: arms.include.0.levels.workload: is not for an arm to say",
        ),
        (
            "levels: {mode: none, lazy",
            "levels: {mode: none, lasy",
            "12: arms.include.0.levels.lasy: unknown factor of the matrix 'lasy'; "
            "did you mean lazy?",
        ),
    ],
)
def test_a_slip_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in STUDY
    with pytest.raises(ColdbenchError) as caught:
        plan(tmp_path, STUDY.replace(old, new))
    assert re.search(re.escape(said), str(caught.value)), str(caught.value)


def test_cells_read_as_in_the_main_table(tmp_path: Path) -> None:
    text = STUDY.replace("{build: new}", "{build: old, model: m}").replace(
        "rows: [model, mode]", "rows: mode"
    )
    text = text.replace("levels: {mode: none, lazy: on}", "levels: {}")
    pivots = plan(tmp_path, text).pivots
    (column,) = needed(pivots, {})
    assert column == Column("cold", "prompt_tps")

    def row(arm: str, figure: Figure | None, runs: Runs) -> ArmRow:
        return ArmRow(arm, None, None, {"cold": runs}, {column: figure})

    rows = (
        row("old-mode-none-lazy-off", Figure(200.0, 190.0, 210.0, 3), Runs(3, 3)),
        row("old-mode-mmap-lazy-on", None, Runs(0, 3, status="refused")),
        row("old-mode-mmap-lazy-off", Figure(50.0, 50.0, 50.0, 2), Runs(2, 3)),
    )
    table = Table("m", "m", "bench", "bench", ("cold",), (column,), rows, (), (), (), {})
    (made,) = pivot_tables(pivots, [table], {})
    assert [[cell and cell.arm for cell in line] for line in made.cells] == [
        [None, "old-mode-none-lazy-off"],
        ["old-mode-mmap-lazy-on", "old-mode-mmap-lazy-off"],
    ]
    shown = markdown(Matrix("t", (), (table,), (), ()), [made])
    part = shown[shown.index("## By factors") :]
    assert "modes: cold prompt, t/s, build old, model m:" in part
    lines = [re.sub(r" +", " ", line) for line in part.splitlines() if line.startswith("|")]
    assert lines[0] == "| mode | lazy on | lazy off |"
    assert lines[2:] == [
        "| none | — | 200.0 (190.0–210.0) |",
        "| mmap | refused | 50.0 (2 of 3 ok) |",
    ]


OLD = STUDY.replace("{build: new}", "{build: old, model: m}").replace("[model, mode]", "mode")


def test_two_arms_at_the_same_levels_are_told(tmp_path: Path) -> None:
    plan(tmp_path, OLD)
    told = (
        "16: pivots.modes: m bench old-mode-mmap-lazy-on and m bench apart fall in one place; give"
    )
    with pytest.raises(ColdbenchError, match=re.escape(told)):
        plan(tmp_path, OLD.replace("levels: {mode: none", "levels: {mode: mmap"))


def test_arms_of_a_list_have_the_levels_that_they_say(tmp_path: Path) -> None:
    text = """\
models: {m: {source: {path: m.gguf}}}
builds: {old: {source: {binaries: old}}, new: {source: {binaries: new}}}
workloads: {bench: {driver: llama-bench}}
arms:
  - {name: a, build: new, args: [-x], levels: {depth: deep}}
  - {name: b, build: old, args: [-x], levels: {depth: deep}}
  - {name: c, build: old, levels: {depth: flat}}
blocks: {cold: 3}
pivots:
  depths: {rows: depth, columns: build, metrics: prompt_tps}
"""
    study = plan(tmp_path, text)
    (pivot,) = study.pivots
    assert (pivot.rows, pivot.columns) == ((("deep",), ("flat",)), (("old",), ("new",)))
    assert pivot.tiles == ((tile("b"), tile("a")), (tile("c"), None))
    assert [arm.levels for arm in study.arms if arm.twin_of is None] == [
        {"build": "new", "depth": "deep"},
        {"build": "old", "depth": "deep"},
        {"build": "old", "depth": "flat"},
    ]


def test_listed_arms_are_grouped_for_identity_by_their_levels(tmp_path: Path) -> None:
    """A level that only a listed arm names is a group too; without any it would be refused."""
    check = """\
identity: {workload: greedy, mutant: another, group_by: [place]}
"""
    text = """\
models: {m: {source: {path: m.gguf}}}
builds: {old: {source: {binaries: old}}}
workloads:
  bench: {driver: llama-bench}
  greedy: {driver: llama-completion, prompt: one}
arms:
  - {name: a, build: old, args: [-ngl, 0], levels: {place: host}}
  - {name: b, build: old, args: [-ngl, 1], levels: {place: device}}
blocks: {cold: 3}
"""
    spec = plan(tmp_path, text + check).identity("m")
    assert spec is not None
    assert [arm.levels.get("place") for arm in spec.arms[:2]] == ["host", "device"]
    with pytest.raises(ColdbenchError, match=r"group_by: unknown factor 'place'"):
        plan(tmp_path, re.sub(r", levels: \{.*?\}", "", text) + check)


def test_an_edited_pivot_changes_what_is_shown_and_nothing_that_is_measured(
    tmp_path: Path,
) -> None:
    before = plan(tmp_path, OLD)
    after = plan(tmp_path, OLD.replace("prompt_tps", "peak_rss_bytes"))
    assert before.presentation() != after.presentation()
    assert before.block("m", "bench", 1) == after.block("m", "bench", 1)


def published(folder: Path, study: Plan, runs: list[Run]) -> str:
    """Publish a journal of runs of models by the study's presentation; return matrix.md."""
    folder.joinpath("raw").mkdir(exist_ok=True)
    receipts = []
    for model in sorted({run.model for run in runs}):
        of_model = [run for run in runs if run.model == model]
        journal = folder / "raw" / f"{model}.jsonl"
        journal.write_text("".join(run.model_dump_json(by_alias=True) + "\n" for run in of_model))
        for block in sorted({run.block for run in of_model}):
            of_block = [run for run in of_model if run.block == block]
            receipts.append(folder / f"receipt-{model}-{block}.json")
            write_json(
                receipts[-1],
                {
                    "model": model,
                    "workload": "bench",
                    "block": block,
                    "journal": f"raw/{model}.jsonl",
                    "cells": [
                        {"state": "cold", "variant": "", "arm": run.arm, "levels": {}}
                        | {"cell": run.cell}
                        for run in of_block
                    ],
                    "runs": {run.run: run.status for run in of_block},
                },
            )
    files = {name: folder / name for name in ("matrix.md", "matrix.csv", "verdicts", "drift")}
    publish_matrix(
        study.presentation(),
        folder,
        receipts,
        markdown_file=files["matrix.md"],
        csv_file=files["matrix.csv"],
        verdicts_file=files["verdicts"],
        drift_file=files["drift"],
    )
    return files["matrix.md"].read_text()


def test_what_was_measured_is_published_by_levels(tmp_path: Path) -> None:
    """Of model w nothing was measured; of one arm no run was delivered."""
    text = STUDY.replace("metrics: prompt_tps", "metrics: [prompt_tps, wall_s]")
    study = plan(tmp_path, text)
    rates = {
        "new-mode-none-lazy-on": 100.0,
        "new-mode-none-lazy-off": 200.0,
        "new-mode-mmap-lazy-on": 300.0,
        "new-mode-mmap-lazy-off": None,
        "apart": 900.0,  # of the other build
    }
    runs = [
        fabricated_run(
            arm,
            block,
            model="m",
            workload="bench",
            status="not delivered" if rate is None else "ok",
            reason="the table was not lazy" if rate is None else "",
            metrics={} if rate is None else {"prompt_tps": rate + block},
        )
        for arm, rate in rates.items()
        for block in (1, 2, 3)
    ]
    shown = published(tmp_path, study, runs)
    main, part = shown.split("## By factors", 1)
    part = part.split("\n## ")[0]
    speed, wall = (
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in table.splitlines()
            if line.startswith("|")
        ]
        for table in part.split("modes: cold ")[1:]
    )
    assert speed[0] == ["model", "mode", "lazy on", "lazy off"]
    assert speed[2:] == [
        ["m", "none", "102.0 (101.0–103.0)", "202.0 (201.0–203.0)"],
        ["m", "mmap", "302.0 (301.0–303.0)", "not delivered"],
        ["w", "none", "n/a", "n/a"],
        ["w", "mmap", "n/a", "n/a"],
    ]
    assert wall[2][2].startswith("2.0")
    assert wall[3][3] == "not delivered"
    assert "900" not in part
    # The same words and figures as in the main table, which has no column of times.
    for cell in ("102.0 (101.0–103.0)", "302.0 (301.0–303.0)", "not delivered"):
        assert cell in main
    assert "the table was not lazy" in main
