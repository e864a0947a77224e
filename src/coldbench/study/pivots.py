"""Pivots of a study: which arm stands in which row and column of a table by levels of factors."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coldbench.study.faults import Faults
from coldbench.study.schema import Pivot, State
from coldbench.study.specs import Arm, PivotSpec, PivotTile
from coldbench.study.words import Place


@dataclass(frozen=True)
class Layout:
    """What pivots are laid out over: `arms` by (model, workload), in the file's order.

    `axes` holds, for what a row or column can be named after, its levels in the file's order.
    """

    models: Sequence[str]
    workloads: Sequence[str]
    arms: Sequence[Arm]
    axes: Mapping[str, Sequence[str]]

    def tiles(self) -> list[tuple[dict[str, str], PivotTile]]:
        """Return every measured (model, workload, arm) with its level on each axis that it has."""
        return [
            (
                {"model": model, "workload": workload, "build": arm.build, **arm.levels},
                PivotTile(model=model, workload=workload, arm=arm.name),
            )
            for model, workload, arm in itertools.product(self.models, self.workloads, self.arms)
            if arm.twin_of is None
        ]


def laid_out(
    name: str, pivot: Pivot, layout: Layout, states: Sequence[State], faults: Faults
) -> PivotSpec:
    """Return a pivot with an arm, or none, in each of its places.

    Raises ColdbenchError for what the study does not have, and where a
    place would hold two arms.
    """
    place: Place = ("pivots", name)
    for key, axes in (("rows", pivot.rows), ("columns", pivot.columns), ("where", pivot.where)):
        for axis in axes:
            faults.known((*place, key), "factor", axis, layout.axes)
    for axis, level in pivot.where.items():
        faults.known((*place, "where", axis), f"level of {axis}", level, layout.axes[axis])
    named = [*pivot.rows, *pivot.columns, *pivot.where]
    if twice := next((axis for axis in named if named.count(axis) > 1), None):
        raise faults.fail(place, f"{twice} stands twice in rows, columns and where; keep one")
    kept = [
        (levels, tile)
        for levels, tile in layout.tiles()
        if all(axis in levels for axis in named)
        and all(levels[axis] == level for axis, level in pivot.where.items())
    ]
    if not kept:
        raise faults.fail(place, "no arm is at these levels of all of these factors; name others")
    filled: dict[tuple[tuple[str, ...], tuple[str, ...]], PivotTile] = {}
    first: dict[PivotTile, dict[str, str]] = {}
    for levels, tile in kept:
        at = tuple(tuple(levels[axis] for axis in axes) for axes in (pivot.rows, pivot.columns))
        other = filled.setdefault((at[0], at[1]), tile)
        first[tile] = levels
        if other != tile:
            both = dict.fromkeys([*first[other], *levels])
            varies = [axis for axis in both if first[other].get(axis) != levels.get(axis)]
            mend = f"name {' or '.join(varies)} in rows, columns or where"
            raise faults.fail(
                place,
                f"{' '.join(other.words)} and {' '.join(tile.words)} fall in one place; "
                + (mend if varies else "give one of them other `levels`"),
            )
    rows, columns = (
        _in_order({at[side] for at in filled}, axes, layout)
        for side, axes in enumerate((pivot.rows, pivot.columns))
    )
    return PivotSpec(
        name=name,
        row_axes=pivot.rows,
        column_axes=pivot.columns,
        where=pivot.where,
        metrics=pivot.metrics,
        states=tuple(states),
        rows=tuple(rows),
        columns=tuple(columns),
        tiles=tuple(tuple(filled.get((row, column)) for column in columns) for row in rows),
    )


def _in_order(
    places: Iterable[tuple[str, ...]], axes: Sequence[str], layout: Layout
) -> list[tuple[str, ...]]:
    """Return rows or columns by the order of their levels in the file, first axis first."""
    ranks = [{level: rank for rank, level in enumerate(layout.axes[axis])} for axis in axes]
    return sorted(
        places, key=lambda at: [rank[level] for rank, level in zip(ranks, at, strict=True)]
    )
