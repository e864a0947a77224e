"""The matrix as GitHub-flavoured Markdown."""

import re
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from coldbench.analysis.drift import Drift
from coldbench.analysis.in_force import MACHINE
from coldbench.analysis.verdicts import VerdictRow
from coldbench.publish.figures import (
    MISSING,
    Unit,
    interval,
    label,
    ratio,
    spread,
    unit_for,
    word,
)
from coldbench.publish.matrix import ArmRow, Column, Matrix, Table
from coldbench.publish.pivots import PivotTable
from coldbench.study.specs import PublishedTable

_FIGURES = (
    "A figure is the median (smallest–largest) over fresh processes, one a block; *runs* says how "
    "many. Cold: no page of the model was in the page cache before the start; warm: after an "
    "identical run that is not counted. *Identity* is the start of the md5 of what the arm "
    "computed: greedy text, logits or a checksum. Peak RSS is what was resident, pages of mapped "
    "files included; of these, *anonymous* is the process's own memory and *file-backed* what the "
    "kernel could drop. *Drift* is what a run later in its block, or a block later, changed in the "
    "rates of all arms alike (p after Holm's correction over the table)."
)
_PIVOTS = "The figures of the arms above, by their levels. *—*: the study has no such arm."
_TEXTS = (
    "This engine does not give the same text each time. *22 of 24*: so many of the arm's texts are "
    "the commonest one of the first arm, not fewer than that arm's own rate lets expect (Fisher's "
    "exact test, p > 0.01)."
)
_RATIOS = (
    "A ratio is treatment over control: exp of the mean log ratio within blocks, with its 95% "
    "paired t interval over n blocks. A difference must exceed 1% and the A/A spread at p ≤ 0.05 "
    "after Holm's correction over all comparisons and, from 6 blocks on, at sign-flip p ≤ 0.05; "
    "with fewer it is exploratory unless its interval clears 10%. Equivalence takes two one-sided "
    "tests inside the margin and 6 blocks. *Needs*: the blocks that would resolve the margin if "
    "effect and scatter stay as they are."
)
_CONTROLS = (
    "Here treatment and control are the same arm, so that any effect is the experiment's own. "
    "ALARM: it shows a difference that cannot be there; mistrust the comparisons beside it."
)


def markdown(matrix: Matrix, pivots: Sequence[PivotTable] = ()) -> str:
    """Return the whole matrix, and pivots, as one Markdown document that ends in a newline."""
    parts = [f"# {_text(matrix.title)}"]
    parts += [_host(facts) for facts in matrix.hosts]
    parts.append(_FIGURES)
    if any(row.identity and row.identity.rate for table in matrix.tables for row in table.rows):
        parts.append(_TEXTS)
    several = len({table.workload for table in matrix.tables}) > 1
    model = None
    for table in matrix.tables:
        if table.model != model:
            parts.append(f"## {_named(table.model, table.model_label)}")
            model = table.model
        if several:
            parts.append(f"### {_named(table.workload, table.workload_label)}")
        parts += [_table(table), _drift(table.drifts), *_in_force(table)]
        notes = [f"[{i}] {_text(note)}" for i, note in enumerate(table.numbered_notes, start=1)]
        notes += [_text(note) for note in table.notes]
        if notes:
            parts.append("\n".join(f"- {note}" for note in notes))
    if pivots:
        parts += ["## By factors", _PIVOTS]
        parts += [part for pivot in pivots for part in _pivot(pivot)]
    if matrix.claims:
        parts += ["## Comparisons", _RATIOS, _ratios(matrix.claims, several)]
    if matrix.controls:
        parts += ["## A/A controls", _CONTROLS, _ratios(matrix.controls, several)]
    if matrix.published:
        parts.append("## As published by others")
        parts += [part for table in matrix.published for part in _published(table)]
    return "\n\n".join(parts) + "\n"


def _pivot(table: PivotTable) -> list[str]:
    shown = [row for line in table.cells for row in line if row is not None]
    unit = _unit(shown, table.column)
    where = "".join(f", {axis} {level}" for axis, level in table.where.items())
    title = f"{_text(table.name)}: {_heading(table.column, unit)}{_text(where)}"
    headings = [
        ", ".join(f"{axis} {level}" for axis, level in zip(table.column_axes, levels, strict=True))
        for levels in table.columns
    ]
    rows = [
        [
            *map(_text, levels),
            *("—" if row is None else _placed(row, table.column, unit) for row in line),
        ]
        for levels, line in zip(table.rows, table.cells, strict=True)
    ]
    grid = _grid(
        rows,
        [*map(_text, table.row_axes), *map(_text, headings)],
        ["left"] * len(table.row_axes) + ["right"] * len(headings),
    )
    return [f"{title}:", grid]


def _placed(row: ArmRow, column: Column, unit: Unit) -> str:
    """Return a cell with how many runs it rests on where some are missing: no column says so."""
    runs = row.runs.get(column.state)
    text = _cell(row, column, unit)
    if row.figures[column] is None or runs is None or runs.ok == runs.total:
        return text
    return f"{text} ({runs.ok} of {runs.total} ok)"


def _published(table: PublishedTable) -> list[str]:
    headings = [*dict.fromkeys(heading for row in table.rows for heading in row)]
    rows = [[_text(row.get(heading, "")) for heading in headings] for row in table.rows]
    grid = _grid(rows, [_text(heading) for heading in headings], ["left"] * len(headings))
    return [f"{_text(table.source)}:", grid]


def _host(facts: Mapping[str, str]) -> str:
    # What the kernel reads ahead decides what a cold fault costs: nobody may overlook it.
    bold = {"read_ahead_kb"}
    said = [
        f"**{_text(name)} {_text(text)}**" if name in bold else f"{_text(name)} {_text(text)}"
        for name, text in facts.items()
    ]
    return f"Host: {'; '.join(said)}."


def _named(name: str, label: str) -> str:
    return _text(name if label == name else f"{name}: {label}")


def _table(table: Table) -> str:
    units = {column: _unit(table.rows, column) for column in table.columns}
    headings, alignment = ["arm", "identity"], ["left", "left"]
    for state in table.states:
        columns = [column for column in table.columns if column.state == state]
        headings.append(f"{state} runs")
        headings += [_heading(column, units[column]) for column in columns]
        alignment += ["right"] * (len(columns) + 1)
    rows = []
    for arm in table.rows:
        cells = [_text(arm.arm), _identity(arm)]
        for state in table.states:
            cells.append(_runs(arm, state))
            cells += [
                _cell(arm, column, units[column])
                for column in table.columns
                if column.state == state
            ]
        rows.append(cells)
    return _grid(rows, headings, alignment)


def _in_force(table: Table) -> list[str]:
    """Return a table of the settings that arms differ in; nothing where there are none."""
    headings = [*dict.fromkeys(name for values in table.in_force.values() for name in values)]
    if not headings:
        return []
    rows = [
        [_text(row.arm), *(_text(table.in_force[row.arm][name]) for name in headings)]
        for row in table.rows
        if row.arm in table.in_force
    ]
    named = [
        _text({"buffers": "buffers, MiB"}.get(name, name.replace("_", " "))) for name in headings
    ]
    grid = _grid(rows, ["arm", *named], ["left"] * (len(named) + 1))
    ours = " and the kernel's files" if any(name in MACHINE for name in headings) else ""
    return [f"In force, by the engine's own log{ours}:", grid]


def _drift(tests: Sequence[Drift]) -> str:
    """Return in one line what the tests for drift found."""
    found = [
        f"{test.state} {_text(label(test.metric))} {slope.change:+.1%} a "
        f"{'run' if test.effect == 'position' else 'block'} (p = {test.adjusted_p:.2g})"
        for test in tests
        if test.found and (slope := test.slope)
    ]
    if found:
        return f"Drift: {'; '.join(found)}."
    if any(test.slope for test in tests):
        return "Drift: none found."
    return "Drift: not tested, too few runs."


def _unit(rows: Sequence[ArmRow], column: Column) -> Unit:
    medians = [figure.median for row in rows if (figure := row.figures[column])]
    return unit_for(column.metric, max(medians, default=0.0), column.unit)


def _heading(column: Column, unit: Unit) -> str:
    name = f"{column.state} {_text(label(column.metric))}"
    return f"{name}, {_text(unit.name)}" if unit.name else name


def _identity(row: ArmRow) -> str:
    mark = _mark(row.identity_note)
    if row.identity is None:
        return "not checked"
    if not row.identity.ok:
        return f"FAILED{mark}"
    rate = row.identity.rate
    often = f" ({rate.equal} of {rate.runs})" if rate else ""
    return f"{(row.identity.md5 or MISSING)[:8]} ok{often}{mark}"


def _runs(row: ArmRow, state: str) -> str:
    runs = row.runs[state]
    counts = f"{runs.ok}" if runs.ok == runs.total else f"{runs.ok} of {runs.total} ok"
    return counts + "".join(map(_mark, runs.notes))


def _cell(row: ArmRow, column: Column, unit: Unit) -> str:
    figure, runs = row.figures[column], row.runs.get(column.state)
    if runs is None:
        return MISSING
    if figure is not None:
        text = spread(figure.median, figure.low, figure.high, unit)
        return text if figure.n == runs.ok else f"{text} n={figure.n}"
    if row.withheld and runs.ok:
        return "withheld"
    return runs.status or MISSING


def _mark(note: int | None) -> str:
    return "" if note is None else f" [{note}]"


def _ratios(rows: Sequence[VerdictRow], several: bool) -> str:
    headings = ["comparison", "model", "workload", "state", "metric", "treatment", "control"]
    headings += ["ratio", "95% interval", "n", "A/A spread", "verdict", "needs", "notes"]
    alignment = ["left"] * 7 + ["right"] * 4 + ["left", "right", "left"]
    dropped = set() if several else {"workload"}
    if rows[0].control:
        dropped |= {"A/A spread", "needs", "comparison"}
    kept = [index for index, heading in enumerate(headings) if heading not in dropped]
    cells = [_comparison(row) for row in rows]
    return _grid(
        [[row[index] for index in kept] for row in cells],
        [headings[index] for index in kept],
        [alignment[index] for index in kept],
    )


def _comparison(row: VerdictRow) -> list[str]:
    claim, verdict, found = row.claim, row.verdict, row.verdict.ratio
    told = word(row) + (" (exploratory)" if verdict.exploratory and not row.control else "")
    names = [claim.name, claim.model, claim.workload, claim.state, label(claim.metric)]
    return [
        *(_text(name) for name in [*names, claim.treatment, claim.control]),
        MISSING if found is None else ratio(found.ratio),
        MISSING if found is None else interval(found.low, found.high, found.ratio),
        "0" if found is None else str(found.n),
        MISSING if row.aa_spread is None else f"{row.aa_spread:.1%}",
        told,
        "" if verdict.blocks is None else f"{verdict.blocks:,}",
        _text(verdict.reason),
    ]


def _grid(rows: list[list[str]], headings: list[str], alignment: list[str]) -> str:
    # Numbers are text already: tabulate must not parse and reformat them.
    return tabulate(
        rows, headers=headings, tablefmt="pipe", disable_numparse=True, colalign=alignment
    )


def _text(text: str) -> str:
    """Return a name or message so that Markdown shows it as it is, on one line."""
    escaped = re.sub(r"([\\`*<>\[\]|])", r"\\\1", " ".join(text.split()))
    # An underscore inside a word is plain text to GitHub; elsewhere it would mean emphasis.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)
