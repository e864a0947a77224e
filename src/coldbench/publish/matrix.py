"""The comparison matrix as plain data: what stands where, before any markup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from coldbench.analysis.identity import IdentityCell
from coldbench.analysis.stats import Verdict
from coldbench.analysis.summary import STATUSES, summarise
from coldbench.analysis.verdicts import VerdictRow
from coldbench.study.metrics import METRICS
from coldbench.study.schema import STATES

Identity = Mapping[tuple[str, str], IdentityCell]
"""(model, arm) -> outcome of the identity check; an arm that is absent was not checked."""

_BY_STATE = {
    "cold": (
        "prompt_tps",
        "generation_tps",
        "peak_rss_bytes",
        "read_bytes",
        "major_faults",
        "table_residency",
    ),
    "warm": ("prompt_tps", "generation_tps", "read_bytes"),
}
_IF_MEASURED = {"prompt_tps", "generation_tps", "table_residency"}
"""Left out of a table in which no run has them: not every workload or model does."""


@dataclass(frozen=True)
class Figure:
    """The spread of a metric over the ok runs of a cell, in the metric's base unit."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Column:
    """A metric in a cache state; `unit` names the unit of a user's own metric."""

    state: str
    metric: str
    unit: str = ""


@dataclass(frozen=True)
class Runs:
    """How many runs of an arm in a cache state are ok, of how many, attempts included.

    `note` is the number of the note that says what became of the others. `status` is what most
    of them are where none is ok, else empty.
    """

    ok: int
    total: int
    status: str = ""
    note: int | None = None


@dataclass(frozen=True)
class ArmRow:
    """One arm of a table: its runs by state, and by column its Figure or None for none."""

    arm: str
    identity: IdentityCell | None
    identity_note: int | None
    runs: Mapping[str, Runs]
    figures: Mapping[Column, Figure | None]

    @property
    def withheld(self) -> bool:
        """Return whether the identity check forbids publishing this arm's figures."""
        return self.identity is not None and not self.identity.ok


@dataclass(frozen=True)
class Table:
    """One model under one workload, a row an arm.

    `numbered_notes` are those that rows refer to, counted from 1; `notes` are the model's own.
    """

    model: str
    model_label: str
    workload: str
    workload_label: str
    states: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[ArmRow, ...]
    numbered_notes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    """All tables of a study, with the verdicts on its claims and on the A/A controls."""

    title: str
    hosts: tuple[Mapping[str, str], ...]
    tables: tuple[Table, ...]
    claims: tuple[VerdictRow, ...]
    controls: tuple[VerdictRow, ...]


def matrix(
    *,
    title: str,
    frame: pd.DataFrame,
    verdicts: Sequence[VerdictRow],
    identity: Identity,
    models: Mapping[str, str],
    workloads: Mapping[str, str],
    arms: Sequence[str],
    hosts: Sequence[Mapping[str, str]] = (),
    notes: Mapping[str, Sequence[str]] | None = None,
    units: Mapping[str, str] | None = None,
) -> Matrix:
    """Lay out a study's tables from its tidy `frame`.

    `models` and `workloads` map names to labels and set the order, as `arms` does. `hosts` are
    facts (name -> text) of each machine, `notes` the remarks on each model, `units` the units of
    a user's own metrics. Of an arm whose identity check failed no figure and no verdict is kept.
    """
    summary = summarise(frame)
    tables = []
    for model, model_label in models.items():
        for workload, workload_label in workloads.items():
            rows = _of(frame, model=model, workload=workload)
            if rows.empty:
                continue
            states = tuple(state for state in STATES if (rows["state"] == state).any())
            columns = _columns(rows, states, units or {})
            numbered = _Notes()
            figures = _figures(_of(summary, model=model, workload=workload))
            arm_rows = []
            for arm in arms:
                cell = identity.get((model, arm))
                withheld = cell is not None and not cell.ok
                arm_rows.append(
                    ArmRow(
                        arm=arm,
                        identity=cell,
                        identity_note=(
                            numbered.number(f"identity: {cell.reason}")
                            if cell is not None and cell.reason
                            else None
                        ),
                        runs={
                            state: _runs(_of(rows, arm=arm, state=state), arm, state, numbered)
                            for state in states
                        },
                        figures={
                            column: (
                                None
                                if withheld
                                else figures.get((column.state, arm, column.metric))
                            )
                            for column in columns
                        },
                    )
                )
            tables.append(
                Table(
                    model=model,
                    model_label=model_label,
                    workload=workload,
                    workload_label=workload_label,
                    states=states,
                    columns=columns,
                    rows=tuple(arm_rows),
                    numbered_notes=tuple(numbered.texts),
                    notes=tuple((notes or {}).get(model, ())),
                )
            )
    publishable = [_publishable(row, identity) for row in verdicts]
    return Matrix(
        title=title,
        hosts=tuple(hosts),
        tables=tuple(tables),
        claims=tuple(row for row in publishable if not row.control),
        controls=tuple(row for row in publishable if row.control),
    )


class _Notes:
    """The numbered notes of a table; what several rows have in common is one note."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def _of(frame: pd.DataFrame, **wanted: str) -> pd.DataFrame:
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return frame


def _columns(
    rows: pd.DataFrame, states: Sequence[str], units: Mapping[str, str]
) -> tuple[Column, ...]:
    measured = set(rows.loc[rows["value"].notna(), "metric"])
    columns = []
    for state in states:
        columns += [
            Column(state, metric)
            for metric in _BY_STATE[state]
            if metric in measured or metric not in _IF_MEASURED or not measured
        ]
        columns += [
            Column(state, metric, units.get(metric, ""))
            for metric in sorted(measured - set(METRICS))
        ]
    return tuple(columns)


def _figures(summary: pd.DataFrame) -> dict[tuple[str, str, str], Figure]:
    return {
        (row["state"], row["arm"], row["metric"]): Figure(
            float(row["median"]), float(row["min"]), float(row["max"]), int(row["n"])
        )
        for row in summary.to_dict("records")
        if row["n"] > 0
    }


def _runs(rows: pd.DataFrame, arm: str, state: str, notes: _Notes) -> Runs:
    # Every run has one row of every metric, so those of one metric are the runs.
    runs = _of(rows, metric="wall_s")
    bad = runs[runs["status"] != "ok"]
    if bad.empty:
        return Runs(len(runs), len(runs))
    counted = bad.groupby(["status", "reason"]).size().reset_index(name="count").to_dict("records")
    counted.sort(key=lambda row: (-row["count"], STATUSES.index(row["status"]), row["reason"]))
    said = [
        f"{row['count']} of {len(runs)} runs {row['status']}: {row['reason'] or 'no reason given'}"
        for row in counted
    ]
    ok = len(runs) - len(bad)
    return Runs(
        ok=ok,
        total=len(runs),
        status="" if ok else counted[0]["status"],
        note=notes.number(f"{arm}, {state}: {'; '.join(said)}"),
    )


def _publishable(row: VerdictRow, identity: Identity) -> VerdictRow:
    claim = row.claim
    cells = {arm: identity.get((claim.model, arm)) for arm in (claim.treatment, claim.control)}
    failed = [arm for arm, cell in cells.items() if cell is not None and not cell.ok]
    if not failed:
        return row
    reason = f"identity of {' and '.join(failed)} failed"
    return VerdictRow(claim, Verdict("not comparable", reason=reason), control=row.control)
