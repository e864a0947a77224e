"""Records to one tidy table, to a summary of each cell, and to pairs."""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
from pydantic import ValidationError

from coldbench.analysis.metrics import OF_RECORD, values
from coldbench.analysis.stats import FEWEST, Floats
from coldbench.common.errors import ColdbenchError
from coldbench.measure.quiet import NOTE
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
    "latest",
    "busy",
    "host",
    "metric",
    "value",
]
_ORDER = ("model", "workload", "state", "metric", "block", "pass", "arm", "run", "attempt")
_FIGURES = ["n", "median", "min", "max", "mean"]


EVERY_RUN_HAS = "wall_s"
"""Of this metric every run has exactly one row: its rows are the runs."""

Cell = tuple[str, str, str, str]
"""(model, workload, state, arm)."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: the blocks in which its latest run is ok, of all that its lane has.

    `faults` counts the other blocks by status, `not measured` where the cell has no run there;
    `reason` is that of the first of them. `busy` counts ok blocks on a busy machine.
    """

    ok: int
    blocks: int
    faults: Mapping[str, int]
    reason: str
    busy: int

    @property
    def complete(self) -> bool:
        """Return whether every block has an ok run: only then is the cell ranked."""
        return self.ok == self.blocks

    @property
    def over_budget(self) -> bool:
        """Return whether its memory budget is all that stopped it, which is a result."""
        return self.faults.keys() == {"over budget"}

    def __str__(self) -> str:
        """Return such as `2 of 5 ok (not delivered)`."""
        said = [
            status if len(self.faults) == 1 else f"{count} {status}"
            for status, count in self.faults.items()
        ]
        return f"{self.ok} of {self.blocks} ok" + (f" ({', '.join(said)})" if said else "")


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
    reason, latest, busy, host, metric, value. A run has a row for every metric that any run of its
    workload has; value is NaN where the run lacks it or is not ok. `latest` marks the last attempt
    of a block's last pass, `busy` an ok run on a busy machine, `host` tells machines apart. Rows
    are sorted, whatever the files' order.
    """
    kept = [run for run in runs if run.cell in cells and run.state in STATES]
    figures = [values(run) for run in kept]
    metrics: defaultdict[str, set[str]] = defaultdict(lambda: set(OF_RECORD))
    for run, found in zip(kept, figures, strict=True):
        metrics[cells[run.cell][1]].update(found)
    latest: dict[tuple[object, ...], tuple[int, int]] = {}
    for run in kept:
        place = (cells[run.cell], run.state, run.block)
        latest[place] = max(latest.get(place, (0, 0)), (run.pass_, run.attempt))
    rows = []
    hosts: dict[str, int] = {}
    for run, found in zip(kept, figures, strict=True):
        cell = cells[run.cell]
        last = latest[cell, run.state, run.block] == (run.pass_, run.attempt)
        host = hosts.setdefault(str(sorted(run.host.items())), len(hosts))
        busy = run.status == "ok" and any(note.startswith(NOTE) for note in run.notes)
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
                last,
                busy,
                host,
                metric,
                found.get(metric, math.nan),
            )
            for metric in metrics[cell[1]]
        ]
    # Much faster than pandas' own sorting by nine columns.
    rows.sort(key=itemgetter(*map(_COLUMNS.index, _ORDER)))
    return pd.DataFrame(rows, columns=_COLUMNS)


def outcomes(frame: pd.DataFrame) -> dict[Cell, Outcome]:
    """Return what became of every cell of a tidy frame.

    A block that was measured in several passes counts once, by the latest.
    """
    if frame.empty:
        return {}
    runs = frame[(frame["metric"] == EVERY_RUN_HAS) & frame["latest"]]
    lanes: defaultdict[tuple[str, str, str], set[int]] = defaultdict(set)
    cells: defaultdict[Cell, dict[int, tuple[str, str, bool]]] = defaultdict(dict)
    names = ("model", "workload", "state", "arm", "block", "status", "reason", "busy")
    columns = (runs[name].tolist() for name in names)
    for model, workload, state, arm, block, status, reason, busy in zip(*columns, strict=True):
        lanes[model, workload, state].add(block)
        cells[model, workload, state, arm][block] = (status, reason, busy)
    found = {}
    for cell, by_block in cells.items():
        blocks = sorted(lanes[cell[:3]])
        ends = [by_block.get(block, ("not measured", "", False)) for block in blocks]
        faults = Counter(status for status, _, _ in ends if status != "ok")
        found[cell] = Outcome(
            ok=len(ends) - faults.total(),
            blocks=len(ends),
            faults=dict(faults.most_common()),
            reason=next((reason for status, reason, _ in ends if status != "ok"), ""),
            busy=sum(busy for _, _, busy in ends),
        )
    return found


def summarise(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row a (model, workload, state, arm, metric) of a tidy frame.

    Columns beside these five: n, median, min, max and mean of the latest runs that have the
    figure, one a block, and for each status the number of runs, attempts and repeats included.
    """
    if frame.empty:
        return pd.DataFrame(columns=[*_GROUP, *_FIGURES, *STATUSES])
    groups = frame["value"].where(frame["latest"]).groupby([frame[name] for name in _GROUP])
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
    measured, in whatever pass, counts and the pairs are not interleaved. Runs on two machines are
    never a pair.
    """
    rows = frame[
        (frame["arm"].isin((treatment, control)))
        & (frame["metric"] == metric)
        & (frame["state"] == state)
        & (frame["workload"] == workload)
        & (frame["model"] == model)
        & frame["value"].notna()
    ]
    # Dictionaries: the joins of pandas take longer than all that is done with their result.
    passes: dict[str, dict[tuple[int, int, int], float]] = {treatment: {}, control: {}}
    columns = (rows[name].tolist() for name in ("arm", "block", "pass", "host", "value"))
    for arm, block, pass_, host, value in zip(*columns, strict=True):
        passes[arm][block, pass_, host] = value
    above, below = passes[treatment], passes[control]
    side_by_side = {
        place[0]: (above[place], below[place]) for place in sorted(above.keys() & below.keys())
    }
    last_above, last_below = (
        {(block, host): value for (block, _, host), value in sorted(side.items())}
        for side in (above, below)
    )
    any_pass = {
        place[0]: (last_above[place], last_below[place])
        for place in sorted(last_above.keys() & last_below.keys())
    }
    interleaved = len(side_by_side) >= FEWEST or len(side_by_side) == len(any_pass)
    chosen = side_by_side if interleaved else any_pass
    values_of = np.array([*chosen.values()], dtype=float).reshape(-1, 2)
    return Pairs(
        blocks=tuple(chosen),
        treatment=values_of[:, 0],
        control=values_of[:, 1],
        interleaved=interleaved,
    )


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "damaged line; delete the file and measure its block again"
    field = ".".join(str(part) for part in first["loc"])
    return f"not a record of this version ({field}: {first['msg']}); measure its block again"
