"""A gate for CI: the declared comparisons whose published verdict is a forbidden one."""

import csv
import os
from collections.abc import Collection
from pathlib import Path
from typing import get_args

from coldbench.analysis.stats import Status
from coldbench.common.errors import ColdbenchError

STATUSES: tuple[str, ...] = get_args(Status)

FORBIDDEN = ("slower", "not comparable")
"""What is forbidden unless the caller says otherwise."""

_COLUMNS = ("kind", "comparison", "model", "workload", "state", "metric", "treatment", "control")
_FIGURES = ("ratio", "low", "high", "n", "status", "exploratory", "reason")


def gate(results: Path, forbid: Collection[str] = FORBIDDEN) -> list[str]:
    """Return a line for every declared comparison in `results` whose verdict is in `forbid`.

    `results` is a study's results folder; its verdicts.csv is read. `slower` also stands for a
    metric that got worse in its own direction. Raises ColdbenchError where the file cannot be
    read, is older than what was measured, or holds no declared comparison: a gate that checks
    nothing, or something else, must not pass.
    """
    path = results / "verdicts.csv"
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = [row for row in reader if row.get("kind") == "claim"]
            columns = reader.fieldnames or ()
            published = os.fstat(stream.fileno()).st_mtime
    except (OSError, UnicodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ColdbenchError(
            f"{path}: cannot be read: {why}; name a study's results folder (results/STUDY), "
            "and run the study first"
        ) from None
    if any(journal.stat().st_mtime > published for journal in results.glob("raw/**/*.jsonl")):
        raise ColdbenchError(
            f"{path}: older than what was measured since; run the workflow again, to its end"
        )
    if missing := [name for name in (*_COLUMNS, *_FIGURES) if name not in columns]:
        raise ColdbenchError(f"{path}: has no column {missing[0]}; run the workflow again")
    if not rows:
        raise ColdbenchError(f"{path}: holds no declared comparison; declare one in the study")
    for number, row in enumerate(rows, start=1):
        if row["status"] not in STATUSES:
            raise ColdbenchError(
                f"{path}: comparison {number} has no verdict ({row['status']!r}); run the "
                "workflow again"
            )
    return [_line(row) for row in rows if row["status"] in forbid]


def _line(row: dict[str, str]) -> str:
    where = " ".join(row[name] for name in ("model", "workload", "state", "metric"))
    said = row["status"] + (" (exploratory)" if row["exploratory"] == "yes" else "")
    figures = ""
    if row["ratio"]:
        ratio, *ends = (f"{float(row[name]):.3f}" for name in ("ratio", "low", "high") if row[name])
        interval = f" ({'–'.join(ends)})" if ends else ""
        figures = f", ratio {ratio}{interval}, n = {row['n']}"
    reason = f": {row['reason']}" if row["reason"] else ""
    arms = f"{row['treatment']} against {row['control']}"
    return f"{row['comparison']}: {where}: {arms}: {said}{figures}{reason}"
