"""Records to one tidy table, to a summary of each cell, and to pairs."""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
from pydantic import ValidationError

from coldbench.analysis.metrics import OF_RECORD, values
from coldbench.analysis.stats import FEWEST, Floats
from coldbench.common.errors import ColdbenchError
from coldbench.records import FORMAT, Run, Status
from coldbench.study.schema import STATES

log = logging.getLogger(__name__)

Cells = Mapping[str, tuple[str, str, str]]
"""Cell key -> (model, workload, arm) of the study's plan."""

STATUSES: tuple[str, ...] = get_args(Status)

_GROUP = ["model", "workload", "state", "arm", "metric"]
_COLUMNS = [
    "model",
    "workload",
    "arm",
    "state",
    "block",
    "pass",
    "position",
    "started",
    "run",
    "attempt",
    "status",
    "reason",
    "metric",
    "value",
]
_FIGURES = ["n", "median", "min", "max", "mean"]


@dataclass(frozen=True)
class Pairs:
    """Values of two arms by block, each of shape (n,); `interleaved`: measured side by side."""

    blocks: tuple[int, ...]
    treatment: Floats
    control: Floats
    interleaved: bool


def load_runs(files: Iterable[Path]) -> list[Run]:
    """Read the records of JSON-lines files, in the order given.

    A last line that a kill left half-written is left out, with a line in the log.
    Raises ColdbenchError, naming file and line, where a file is unreadable or damaged otherwise,
    or where a record stands twice.
    """
    runs: list[Run] = []
    places: dict[tuple[object, ...], str] = {}
    for file in files:
        try:
            lines = file.read_bytes().split(b"\n")
        except OSError as error:
            raise ColdbenchError(f"{file}: cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{file}:{number}"
            try:
                run = Run.model_validate_json(line)
            except ValidationError as error:
                if number == len(lines) and error.errors()[0]["type"] == "json_invalid":
                    log.warning("%s: the last line is incomplete and was left out", place)
                    continue
                raise ColdbenchError(f"{place}: {_fault(error)}") from None
            if run.format != FORMAT:
                raise ColdbenchError(
                    f"{place}: record format {run.format}, this version reads {FORMAT}; use the "
                    "version that wrote it, or measure its block again"
                )
            key = (run.cell, run.state, run.block, run.pass_, run.run, run.attempt)
            if key in places:
                raise ColdbenchError(
                    f"{place}: run {run.run} already stands in {places[key]}; remove one of the two"
                )
            places[key] = place
            runs.append(run)
    return runs


def left_out(runs: Iterable[Run], cells: Cells) -> int:
    """Return how many measured runs belong to no cell of the plan, so that `tidy` leaves them out.

    Those are runs of another model content, build, workload or arm than the study now names.
    """
    return sum(run.state in STATES and run.cell not in cells for run in runs)


def tidy(runs: Sequence[Run], cells: Cells) -> pd.DataFrame:
    """Return one row a run and metric, of the plan's cells in the states cold and warm.

    Columns: model, workload, arm, state, block, pass, position, started, run, attempt, status,
    reason, metric, value. A run has a row for every metric that any run of its workload has;
    value is NaN where the run lacks it or is not ok. Rows are sorted, whatever the files' order.
    """
    kept = [run for run in runs if run.cell in cells and run.state in STATES]
    figures = [values(run) for run in kept]
    metrics: defaultdict[str, set[str]] = defaultdict(lambda: set(OF_RECORD))
    for run, found in zip(kept, figures, strict=True):
        metrics[cells[run.cell][1]].update(found)
    rows = []
    for run, found in zip(kept, figures, strict=True):
        cell = cells[run.cell]
        rows += [
            (
                *cell,
                run.state,
                run.block,
                run.pass_,
                run.position,
                run.started,
                run.run,
                run.attempt,
                run.status,
                run.reason,
                metric,
                found.get(metric, math.nan),
            )
            for metric in metrics[cell[1]]
        ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    order = ["model", "workload", "state", "metric", "block", "pass", "arm", "run", "attempt"]
    return frame.sort_values(order, kind="stable", ignore_index=True)


def summarise(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row a (model, workload, state, arm, metric) of a tidy frame.

    Columns beside these five: n, median, min, max and mean of the runs that have the figure, and
    `ok`, `failed`, `invalid`, `void`, `refused`: the number of runs by status, attempts included.
    """
    if frame.empty:
        return pd.DataFrame(columns=[*_GROUP, *_FIGURES, *STATUSES])
    groups = frame.groupby(_GROUP, sort=True)["value"]
    figures = groups.agg(["count", "median", "min", "max", "mean"])
    counts = frame.groupby([*_GROUP, "status"], sort=True).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(STATUSES), fill_value=0)
    return figures.rename(columns={"count": "n"}).join(counts).reset_index()


def pairs(
    frame: pd.DataFrame,
    *,
    model: str,
    workload: str,
    state: str,
    metric: str,
    treatment: str,
    control: str,
) -> Pairs:
    """Return the values of two arms paired by block, in the metric's own unit.

    One pair a block: of the latest pass that has both arms. Only such pairs are used if there
    are at least three or if no more can be had; otherwise every block in which both arms were
    measured, in whatever pass, counts and the pairs are not interleaved.
    """
    rows = frame[
        (frame["model"] == model)
        & (frame["workload"] == workload)
        & (frame["state"] == state)
        & (frame["metric"] == metric)
        & frame["value"].notna()
    ].sort_values(["block", "pass", "attempt"], kind="stable")
    above, below = (
        rows[rows["arm"] == arm].drop_duplicates(["block", "pass"], keep="last")
        for arm in (treatment, control)
    )
    side_by_side = above.merge(below, on=["block", "pass"]).drop_duplicates("block", keep="last")
    any_pass = above.drop_duplicates("block", keep="last").merge(
        below.drop_duplicates("block", keep="last"), on="block"
    )
    interleaved = len(side_by_side) >= FEWEST or len(side_by_side) == len(any_pass)
    chosen = side_by_side if interleaved else any_pass
    return Pairs(
        blocks=tuple(int(block) for block in chosen["block"]),
        treatment=np.asarray(chosen["value_x"], dtype=float),
        control=np.asarray(chosen["value_y"], dtype=float),
        interleaved=interleaved,
    )


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "damaged line; delete the file and measure its block again"
    field = ".".join(str(part) for part in first["loc"])
    return f"not a record of this version ({field}: {first['msg']}); measure its block again"
