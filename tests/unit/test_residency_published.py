"""Curves of the page cache as files: tidy CSV, a table at points in time, a plot."""

import csv
from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.measure.growth import HEADER
from coldbench.publish.residency import publish_residency
from coldbench.records import Run
from coldbench.study.specs import Presentation

from .fabricated_runs import fabricated_run
from .test_matrix import grid

MIB = 2**20
PRESENTATION = Presentation(
    study="demo",
    title="demo",
    models={"gemma": "gemma"},
    workloads={"pp512": "pp512"},
    arms={"lazy": "lazy", "eager": "eager"},
    claims=(),
    aa_pairs=(),
    group_by=(),
    units={},
)


def curve(folder: Path, name: str, points: list[tuple[float, int | None, int]]) -> str:
    """Write a curve of (seconds, MiB of the table, MiB of the rest); return its name."""
    lines = [HEADER]
    for at, table, rest in points:
        lines.append(f"{at:.3f},{'' if table is None else table * MIB},{rest * MIB}")
    path = folder / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return str(path.relative_to(folder))


def publish(folder: Path, runs: list[Run], stem: str = "residency") -> dict[str, Path]:
    """Publish what the journal of these runs tells."""
    journal = folder / "raw" / "block.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("".join(run.model_dump_json(by_alias=True) + "\n" for run in runs))
    receipts = []
    for block in sorted({run.block for run in runs}):
        receipts.append(folder / f"receipt-{block}.json")
        cells = {(run.state, run.arm, run.cell) for run in runs if run.block == block}
        write_json(
            receipts[-1],
            {
                "model": "gemma",
                "workload": "pp512",
                "block": block,
                "journal": "raw/block.jsonl",
                "cells": [
                    {"state": state, "variant": "", "arm": arm, "levels": {}, "cell": cell}
                    for state, arm, cell in sorted(cells)
                ],
                "runs": {run.run: run.status for run in runs if run.block == block},
            },
        )
    files = {kind: folder / f"{stem}.{kind}" for kind in ("csv", "md", "svg")}
    publish_residency(
        PRESENTATION,
        folder,
        receipts,
        csv_file=files["csv"],
        markdown_file=files["md"],
        plot_file=files["svg"],
    )
    return files


def ran(folder: Path, arm: str, block: int, points: Any, **more: Any) -> Run:
    name = curve(folder, f"{arm}-{block}.csv", points)
    return fabricated_run(arm, block, output={"curve": name}, **more)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [
        ran(tmp_path, "lazy", 1, [(0, 0, 0), (10, 10, 100), (20, 30, 100), (70, 80, 100)]),
        ran(tmp_path, "lazy", 2, [(0, 0, 0), (10, 20, 100), (50, 60, 100)]),
        ran(tmp_path, "eager", 1, [(0, None, 0), (31, None, 310)]),
    ]


def test_all_curves_are_one_tidy_file(tmp_path: Path, runs: list[Run]) -> None:
    files = publish(tmp_path, runs)
    with files["csv"].open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        *("model", "workload", "state", "arm", "block", "t_s", "table_bytes", "rest_bytes")
    ]
    assert len(rows) == 4 + 3 + 2
    assert {tuple(row[key] for key in ("model", "workload", "state")) for row in rows} == {
        ("gemma", "pp512", "cold")
    }
    lazy = [row for row in rows if (row["arm"], row["block"]) == ("lazy", "2")]
    assert [(float(row["t_s"]), float(row["table_bytes"]) / MIB) for row in lazy] == [
        (0, 0),
        (10, 20),
        (50, 60),
    ]
    eager = [row for row in rows if row["arm"] == "eager"]
    assert [row["table_bytes"] for row in eager] == ["", ""]
    assert float(eager[1]["rest_bytes"]) == 310 * MIB


def test_the_table_has_points_in_time_and_the_median_over_blocks(
    tmp_path: Path, runs: list[Run]
) -> None:
    text = publish(tmp_path, runs)["md"].read_text()
    header, _, *rows = grid(text, "process.")
    assert header[:6] == ["model", "workload", "state", "arm", "of the model", "runs"]
    assert header[6:] == ["15 s", "30 s", "45 s", "60 s", "at the end"]
    # 15 s: between 10 and 30 it is 20, between 20 and 60 it is 25. 60 s: one run had ended.
    assert rows[0][3:] == ["lazy", "table", "2", "22.5", "40.0", "55.0", "n/a", "70.0"]
    assert rows[1][3:] == ["lazy", "rest", "2", *["100.0"] * 3, "n/a", "100.0"]
    assert rows[2][3:] == ["eager", "table", "1", *["n/a"] * 5]
    assert rows[3][3:] == ["eager", "rest", "1", "150.0", "300.0", "n/a", "n/a", "310.0"]
    assert text.startswith("# Resident in the page cache while the engine ran\n\nMiB, ")


def test_only_measured_runs_that_are_ok_have_a_curve(tmp_path: Path, runs: list[Run]) -> None:
    more = [
        ran(tmp_path, "failed", 1, [(0, 9, 9)], status="failed", reason="exit status 1"),
        ran(tmp_path, "text", 1, [(0, 9, 9)], state="unmeasured", digest="x"),
        fabricated_run("silent", 1),
    ]
    text = publish(tmp_path, [*runs, *more])["csv"].read_text()
    assert not [name for name in ("failed", "text", "silent") if f",{name}," in text]
    assert ",lazy," in text


def test_nothing_measured_is_an_empty_table(tmp_path: Path) -> None:
    files = publish(tmp_path, [fabricated_run("lazy", 1)])
    assert files["csv"].read_text() == (
        "model,workload,state,arm,block,t_s,table_bytes,rest_bytes\n"
    )
    assert "at the end" in files["md"].read_text()
    assert files["svg"].read_text().startswith("<?xml")
    # of a process that ended before the first look
    short = publish(tmp_path, [ran(tmp_path, "lazy", 1, [])])
    assert "lazy" not in short["csv"].read_text()


def test_the_plot_is_the_same_bytes_for_the_same_curves(tmp_path: Path, runs: list[Run]) -> None:
    first = publish(tmp_path, runs)["svg"].read_bytes()
    again = publish(tmp_path, runs, "again")["svg"].read_bytes()
    assert first == again
    assert b"</svg>" in first
    changed = [*runs[:2], ran(tmp_path, "eager", 1, [(0, 1, 0), (31, 400, 310)])]
    assert publish(tmp_path, changed, "other")["svg"].read_bytes() != first


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"t_s,table_bytes\n1,2\n",
        b"t_s,table_bytes,rest_bytes\n1,2,x\n",
        b"t_s,table_bytes,rest_bytes\n1,2,3\n4,5,6,7\n8,9,10,11,12\n",
        b"\xff\xfe\x00",
    ],
    ids=["missing", "empty", "column", "text", "ragged", "binary"],
)
def test_a_curve_that_is_missing_or_damaged_is_one_line_with_the_mend(
    tmp_path: Path, runs: list[Run], content: bytes | None
) -> None:
    path = tmp_path / runs[1].output["curve"]
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ColdbenchError) as caught:
        publish(tmp_path, runs)
    message = str(caught.value)
    assert message.startswith(f"{path}: unreadable (")
    assert message.endswith(
        "); restore it, or delete demo's receipt of block 2 and its journal's run "
        f"{runs[1].run} to measure it anew"
    )
    assert "\n" not in message
    assert not (tmp_path / "residency.csv").exists()
