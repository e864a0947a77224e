"""What a study has measured so far, gathered from its receipts and journals."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from coldbench.analysis.identity import IdentityCell, IdentityRun, judge
from coldbench.analysis.summary import left_out, load_runs, tidy
from coldbench.common.errors import ColdbenchError
from coldbench.common.files import read_json
from coldbench.records import Run
from coldbench.study.schema import STATES

_RECEIPT = ("model", "workload", "block", "journal", "cells", "runs")
_UNTIL = ("model", "workload", "ended", "blocks")


@dataclass(frozen=True)
class Measured:
    """All records of the study, the tidy table of its present cells, and the identity outcomes."""

    runs: list[Run]
    present: list[Run]
    """Records of the present cells, controls included, under the names that these now have."""
    frame: pd.DataFrame
    identity: dict[tuple[str, str], IdentityCell]
    left_out: int
    """Records of cells that the study no longer names (other content, build, arguments)."""
    ended: dict[str, list[str]]
    """By model, why no more blocks were added, where the study adds any."""


def gather(results: Path, receipts: Iterable[Path], group_by: tuple[str, ...] = ()) -> Measured:
    """Read what the receipts name; records of cells that no receipt names are kept but not used.

    Raises ColdbenchError for an unreadable receipt or journal.
    """
    receipts, documents, ended = _read(receipts)
    runs = load_runs(dict.fromkeys(results / document["journal"] for document in documents))
    _check_complete(documents, receipts, runs)
    cells = {
        entry["cell"]: (document["model"], document["workload"], entry["arm"])
        for document in documents
        for entry in document["cells"]
    }
    asked = {
        (document["block"], entry["state"], entry["cell"])
        for document in documents
        for entry in document["cells"]
    }
    # A block that now has fewer cache states keeps the runs of the others, which do not count.
    runs = [
        run for run in runs if run.cell not in cells or (run.block, run.state, run.cell) in asked
    ]
    last = {run.cell: run for run in runs}
    identity = [
        _identity_run(document["model"], entry, last, group_by)
        for document in documents
        for entry in document["cells"]
        if entry["state"] not in STATES
    ]
    present = [
        run.model_copy(update=dict(zip(("model", "workload", "arm"), cells[run.cell], strict=True)))
        for run in runs
        if run.cell in cells
    ]
    checked = {
        (document["model"], document["workload"])
        for document in documents
        for entry in document["cells"]
        if entry["state"] not in STATES
    }
    measured = [
        run for run in present if run.state in STATES and (run.model, run.workload) in checked
    ]
    outcomes = judge(identity, measured)
    return Measured(runs, present, tidy(runs, cells), outcomes, left_out(runs, cells), ended)


def _read(
    receipts: Iterable[Path],
) -> tuple[list[Path], list[dict[str, Any]], dict[str, list[str]]]:
    """Return the receipts of blocks and checks with their files, and why adding blocks ended."""
    files: list[Path] = []
    documents: list[dict[str, Any]] = []
    ended: dict[str, list[str]] = {}
    for path in receipts:
        found = read_json(path)
        if isinstance(found, dict) and "ended" in found:
            until = read_json(path, _UNTIL)
            ended.setdefault(until["model"], []).append(until["ended"])
            added = until["blocks"]
        else:
            added = [read_json(path, _RECEIPT)]
        files += [path] * len(added)
        documents += added
    return files, documents, ended


def _check_complete(
    documents: Iterable[dict[str, Any]], receipts: Iterable[Path], runs: Iterable[Run]
) -> None:
    """Refuse a journal that lost runs since its receipt was written: a table would miss them."""
    recorded: dict[str, set[str]] = {}
    for run in runs:
        recorded.setdefault(run.cell, set()).add(run.run)
    for document, receipt in zip(documents, receipts, strict=True):
        found = set().union(*(recorded.get(entry["cell"], ()) for entry in document["cells"]))
        if lost := sorted(set(document["runs"]) - found):
            raise ColdbenchError(
                f"{document['journal']}: lacks run {lost[0]}, which was measured; restore the "
                f"file, or delete {receipt} and run the workflow again to measure it anew"
            )


def _identity_run(
    model: str, entry: dict[str, Any], last: dict[str, Run], group_by: tuple[str, ...]
) -> IdentityRun:
    return IdentityRun(
        model=model,
        arm=entry["arm"],
        group=tuple(entry["levels"].get(factor, "") for factor in group_by),
        variant=entry["variant"],
        run=last.get(entry["cell"]),
    )
