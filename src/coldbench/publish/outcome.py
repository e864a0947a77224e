"""Whether a study came through: said once its tables are published, so that they are there."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from coldbench.analysis.study import Measured, gather
from coldbench.analysis.summary import outcomes
from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.measure.passes import TO_MEND
from coldbench.study.specs import Presentation


def conclude(
    presentation: Presentation, results: Path, receipts: Sequence[Path], outcome: Path
) -> None:
    """Write what became of every cell as JSON.

    Raises ColdbenchError, a line a cell, where cells are incomplete for anything but their memory
    budget, which is a result, or where a check of identity failed.
    """
    measured = gather(results, receipts, presentation.group_by)
    if faults := [*_without_cell(measured, presentation), *shortfalls(measured)]:
        to_mend = any(run.status in TO_MEND for run in measured.present)
        hint = "mend what is in the way and run `snakemake --cores all --forcerun block identity`; "
        faults.append(f"{hint if to_mend else ''}the tables are published in {results}")
        raise ColdbenchError("\n".join(faults))
    cells = {" ".join(cell): str(end) for cell, end in outcomes(measured.frame).items()}
    write_json(outcome, {"cells": cells})


def _without_cell(measured: Measured, presentation: Presentation) -> list[str]:
    """Return a line for each arm of the study that no receipt of a lane names."""
    arms: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for model, workload, _, arm in outcomes(measured.frame):
        arms[model, workload].add(arm)
    return [
        f"{model} {workload} {arm}: no run of it was planned; delete the receipts of {model} "
        f"{workload} (blocks/{model}/{workload}) and run the same command again"
        for (model, workload), found in arms.items()
        for arm in presentation.arms
        if arm not in found
    ]


def shortfalls(measured: Measured) -> list[str]:
    """Return a heading and a line a cell for what is incomplete, and likewise for identity."""
    lines = [
        f"{' '.join(cell)}: {end}" + (f": {end.reason}" if end.reason else "")
        for cell, end in outcomes(measured.frame).items()
        if not end.complete and not end.over_budget
    ]
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for (model, arm), checked in measured.identity.items():
        if not checked.ok:
            groups[model, checked.reason].append(arm)
    identity = [f"{model} {', '.join(arms)}: {why}" for (model, why), arms in groups.items()]
    return [
        "\n  ".join([f"{count} {what.format('s' * (count > 1))}:", *found])
        for count, what, found in (
            (len(lines), "cell{} incomplete", lines),
            (sum(map(len, groups.values())), "arm{} without identity", identity),
        )
        if found
    ]
