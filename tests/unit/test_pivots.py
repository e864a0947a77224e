"""Pivots: arms by their levels, one to a place, and the same figures as in the main table."""

import re
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.publish.markdown import markdown
from coldbench.publish.matrix import ArmRow, Column, Figure, Matrix, Runs, Table
from coldbench.publish.pivots import needed, pivot_tables
from coldbench.study.plan import Plan
from coldbench.study.specs import PivotTile

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
    assert lines[2:] == ["| none | — | 200.0 (190.0–210.0) |", "| mmap | refused | 50.0 |"]
