"""The comparison matrix as plain data: what stands where, before any markup."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from coldbench.analysis.drift import Drift, drifts
from coldbench.analysis.identity import IdentityCell
from coldbench.analysis.in_force import InForce
from coldbench.analysis.stats import Verdict
from coldbench.analysis.summary import EVERY_RUN_HAS, STATUSES, Outcome, outcomes, summarise
from coldbench.analysis.verdicts import VerdictRow
from coldbench.analysis.wording import pattern, ranged
from coldbench.study.metrics import METRICS
from coldbench.study.schema import STATES
from coldbench.study.specs import PublishedTable

Identity = Mapping[tuple[str, str], IdentityCell]
"""(model, arm) -> outcome of the identity check; an arm that is absent was not checked."""

_PRINTED = (
    *("prompt_tps", "generation_tps"),
    *("ns_per_gather", "ns_per_page", "pages_unique", "hints"),
    *("s_per_token", "first_token_s", "request_s", "bytes_per_token", "overlap", "retained_bytes"),
)
_BY_STATE = {
    "cold": (
        *_PRINTED,
        # Resident pages of a mapped file can be dropped: the total is never shown without them.
        "peak_rss_bytes",
        "anon_at_peak_bytes",
        "file_at_peak_bytes",
        "server_peak_rss_bytes",
        "read_bytes",
        "major_faults",
        "table_residency",
    ),
    "warm": (*_PRINTED, "read_bytes"),
}
_IF_MEASURED = {*_PRINTED, "server_peak_rss_bytes", "table_residency"}
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
    """In how many blocks the run of an arm in a cache state is ok, of how many.

    `attempts` counts all runs, those that were made again included. `notes` are the numbers of
    the notes on them: what became of those that are not ok, and a busy machine. `status` is what
    most blocks ended with where none is ok, else empty.
    """

    ok: int
    total: int
    attempts: int = 0
    status: str = ""
    notes: tuple[int, ...] = ()


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

    `numbered_notes` are those that rows refer to, counted from 1; `notes` are the model's own;
    `drifts` the tests for drift in its lanes; `in_force` the settings in which its arms differ.
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
    drifts: tuple[Drift, ...]
    in_force: InForce


@dataclass(frozen=True)
class Matrix:
    """All tables of a study, with the verdicts on its claims and on the A/A controls."""

    title: str
    hosts: tuple[Mapping[str, str], ...]
    tables: tuple[Table, ...]
    claims: tuple[VerdictRow, ...]
    controls: tuple[VerdictRow, ...]
    published: tuple[PublishedTable, ...] = ()


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
    published: Sequence[PublishedTable] = (),
    settings: Mapping[tuple[str, str], InForce] | None = None,
    besides: Sequence[Column] = (),
) -> Matrix:
    """Lay out a study's tables from its tidy `frame`.

    `models` and `workloads` map names to labels and set the order, as `arms` does. `hosts` are
    facts (name -> text) of each machine, `notes` the remarks on each model, `units` the units of
    a user's own metrics, `published` what others found, `settings` what was in force by (model,
    workload). Rows also have the figures of the columns `besides`. Of an arm whose identity check
    failed no figure and no verdict is kept.
    """
    summary = summarise(frame)
    became, drifted = outcomes(frame), drifts(frame)
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
                            state: _runs(
                                _of(rows, arm=arm, state=state, metric=EVERY_RUN_HAS),
                                became.get((model, workload, state, arm)),
                                f"{arm}, {state}",
                                numbered,
                            )
                            for state in states
                        },
                        figures={
                            column: (
                                None
                                if withheld
                                else figures.get((column.state, arm, column.metric))
                            )
                            for column in dict.fromkeys([*columns, *besides])
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
                    drifts=tuple(
                        each for each in drifted if (each.model, each.workload) == (model, workload)
                    ),
                    in_force=(settings or {}).get((model, workload), {}),
                )
            )
    publishable = [_with_split(_publishable(row, identity), summary) for row in verdicts]
    return Matrix(
        title=title,
        hosts=tuple(hosts),
        tables=tuple(tables),
        claims=tuple(row for row in publishable if not row.control),
        controls=tuple(row for row in publishable if row.control),
        published=tuple(published),
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


def _runs(runs: pd.DataFrame, became: Outcome | None, cell: str, notes: _Notes) -> Runs:
    """Count the runs of a cell, one row each."""
    if became is None:
        return Runs(0, 0)
    faults: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for status, reason in zip(runs["status"].tolist(), runs["reason"].tolist(), strict=True):
        if status != "ok":
            faults[status, pattern(reason)].append(reason or "no reason given")
    told = sorted(
        faults.items(), key=lambda item: (-len(item[1]), STATUSES.index(item[0][0]), item[0][1])
    )
    said = [
        f"{len(reasons)} of {len(runs)} runs {_ended(status)}: {ranged(reasons)}"
        for (status, _), reasons in told
    ]
    numbers = [notes.number(f"{cell}: {'; '.join(said)}")] if said else []
    if became.busy:
        numbers.append(
            notes.number(
                f"{cell}: {became.busy} of {became.blocks} measured on a busy machine: no verdict "
                "rests on them"
            )
        )
    return Runs(
        ok=became.ok,
        total=became.blocks,
        attempts=len(runs),
        status="" if became.ok else _ended(next(iter(became.faults))),
        notes=tuple(numbers),
    )


def _ended(status: str) -> str:
    return "exceeded the budget" if status == "over budget" else status


def _publishable(row: VerdictRow, identity: Identity) -> VerdictRow:
    claim = row.claim
    cells = {arm: identity.get((claim.model, arm)) for arm in (claim.treatment, claim.control)}
    failed = [arm for arm, cell in cells.items() if cell is not None and not cell.ok]
    if not failed:
        return row
    reason = f"identity of {' and '.join(failed)} failed"
    return VerdictRow(claim, Verdict("not comparable", reason=reason), control=row.control)


def _with_split(row: VerdictRow, summary: pd.DataFrame) -> VerdictRow:
    """Put beside a ratio of peak RSS what it is made of: mapped pages weigh less than memory."""
    claim = row.claim
    if claim.metric != "peak_rss_bytes" or row.verdict.ratio is None:
        return row
    cells = _of(summary, model=claim.model, workload=claim.workload, state=claim.state)
    said = []
    for arm in (claim.treatment, claim.control):
        medians = _of(cells, arm=arm).set_index("metric")["median"]
        anon, mapped = medians["anon_at_peak_bytes"], medians["file_at_peak_bytes"]
        split = "n/a" if pd.isna(anon) or pd.isna(mapped) else _split(anon, mapped)
        said.append(f"{arm} {split}")
    reason = "; ".join(filter(None, [row.verdict.reason, f"of these: {', '.join(said)}"]))
    return replace(row, verdict=replace(row.verdict, reason=reason))


def _split(anon: float, mapped: float) -> str:
    return f"{anon / 2**20:,.0f} MiB anonymous + {mapped / 2**20:,.0f} MiB of files"
