"""Pivots as plain data: figures of arms in rows and columns by levels of factors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coldbench.publish.matrix import ArmRow, Column, Table
from coldbench.study.specs import PivotSpec, PivotTile


@dataclass(frozen=True)
class PivotTable:
    """One metric in one cache state: a row and a column a combination of levels.

    A cell is None where the study has no such arm; one of which nothing was measured has no runs.
    """

    name: str
    column: Column
    where: Mapping[str, str]
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[ArmRow | None, ...], ...]


def needed(pivots: Iterable[PivotSpec], units: Mapping[str, str]) -> list[Column]:
    """Return the figures that pivots show, whether or not the main tables do."""
    return [
        Column(state, metric, units.get(metric, ""))
        for pivot in pivots
        for state in pivot.states
        for metric in pivot.metrics
    ]


def pivot_tables(
    pivots: Sequence[PivotSpec], tables: Sequence[Table], units: Mapping[str, str]
) -> list[PivotTable]:
    """Return the tables of `pivots` over the arms' rows in `tables`."""
    rows = {
        PivotTile(model=table.model, workload=table.workload, arm=row.arm): row
        for table in tables
        for row in table.rows
    }
    return [
        PivotTable(
            name=pivot.name,
            column=column,
            where=pivot.where,
            row_axes=pivot.row_axes,
            column_axes=pivot.column_axes,
            rows=pivot.rows,
            columns=pivot.columns,
            cells=tuple(
                tuple(
                    None if tile is None else rows.get(tile) or _unmeasured(tile, column)
                    for tile in line
                )
                for line in pivot.tiles
            ),
        )
        for pivot in pivots
        for column in needed([pivot], units)
    ]


def _unmeasured(tile: PivotTile, column: Column) -> ArmRow:
    return ArmRow(arm=tile.arm, identity=None, identity_note=None, runs={}, figures={column: None})
