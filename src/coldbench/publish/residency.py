"""Curves of the page cache over long runs: how much of table and rest was there, and when."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from coldbench.analysis.study import gather
from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_text
from coldbench.publish.plots import figure
from coldbench.records import Run
from coldbench.study.schema import STATES
from coldbench.study.specs import Presentation

_EARLY_S = (15.0, 30.0, 45.0)
_MINUTE_S = 60.0
_LANE = ["model", "workload", "state", "arm"]


def publish_residency(
    presentation: Presentation,
    results: Path,
    receipts: Sequence[Path],
    *,
    csv_file: Path,
    markdown_file: Path,
    plot_file: Path,
) -> None:
    """Write all curves as one tidy CSV, a table of when how much was there, and a plot.

    CSV: model, workload, state, arm, block, t_s, table_bytes, rest_bytes. Raises ColdbenchError
    for a curve that is missing or unreadable.
    """
    measured = gather(results, receipts, presentation.group_by)
    curves = [_curve(results, run) for run in measured.present if _has_curve(run)]
    if not curves:
        frame = pd.DataFrame(columns=[*_LANE, "block", "t_s", "table_bytes", "rest_bytes"])
    else:
        frame = pd.concat(curves, ignore_index=True)
    write_text(csv_file, frame.to_csv(index=False))
    write_text(markdown_file, _markdown(frame))
    _plot(frame, plot_file)


def _has_curve(run: Run) -> bool:
    return run.status == "ok" and run.state in STATES and "curve" in run.output


def _curve(results: Path, run: Run) -> pd.DataFrame:
    path = results / run.output["curve"]
    try:
        curve = pd.read_csv(path)
        curve = curve[["t_s", "table_bytes", "rest_bytes"]].astype(float)
    except (OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())  # pandas ends its own with a new line
        raise ColdbenchError(
            f"{path}: unreadable ({why}); restore it, or delete {run.study}'s receipt of block "
            f"{run.block} and its journal's run {run.run} to measure it anew"
        ) from error
    lane = pd.DataFrame(
        [(run.model, run.workload, run.state, run.arm, run.block)], columns=[*_LANE, "block"]
    )
    return lane.merge(curve, how="cross")


def _markdown(frame: pd.DataFrame) -> str:
    """Return how many MiB were there at points in time, the median over blocks."""
    longest = float(frame["t_s"].max()) if len(frame) else 0.0
    minutes = np.arange(1, int(longest // _MINUTE_S) + 1) * _MINUTE_S
    points = [at for at in (*_EARLY_S, *minutes.tolist()) if at <= longest]
    rows = []
    for lane, curves in frame.groupby(_LANE, sort=False):
        for part, column in (("table", "table_bytes"), ("rest", "rest_bytes")):
            by_block = [block for _, block in curves.groupby("block")]
            at = [_median_at(by_block, column, point) for point in points]
            end = float(np.median([block[column].iloc[-1] for block in by_block]))
            rows.append([*lane, part, len(by_block), *map(_mib, [*at, end])])
    headings = [*_LANE, "of the model", "runs", *(f"{at:g} s" for at in points), "at the end"]
    table = tabulate(rows, headings, tablefmt="github", disable_numparse=True)
    return (
        "# Resident in the page cache while the engine ran\n\nMiB, the median over blocks; "
        "seconds since the start of the process.\n\n" + table + "\n"
    )


def _median_at(curves: Sequence[pd.DataFrame], column: str, at: float) -> float:
    """Return the median of what the curves show at `at`; NaN where some had ended before."""
    values = [
        float(np.interp(at, curve["t_s"], curve[column]))
        if curve["t_s"].iloc[-1] >= at
        else float("nan")
        for curve in curves
    ]
    return float(np.median(values))


def _mib(value: float) -> str:
    return "n/a" if np.isnan(value) else f"{value / 2**20:,.1f}"


def _plot(frame: pd.DataFrame, target: Path) -> None:
    lanes = [*frame.groupby(["model", "workload", "state"], sort=False)]
    with figure(target, 8, 4 * max(1, len(lanes))) as drawn:
        axes = drawn.subplots(max(1, len(lanes)), 1, squeeze=False)[:, 0]
        for axis, (lane, curves) in zip(axes, lanes, strict=False):
            for number, (arm, of_arm) in enumerate(curves.groupby("arm", sort=False)):
                for block, curve in of_arm.groupby("block"):
                    first = block == of_arm["block"].iloc[0]
                    axis.plot(
                        curve["t_s"],
                        curve["table_bytes"] / 2**20,
                        label=str(arm) if first else None,
                        color=f"C{number % 10}",
                    )
            axis.set(
                title=", ".join(map(str, lane)),
                xlabel="seconds since the start",
                ylabel="table resident (MiB)",
                ylim=(0, None),
            )
            axis.legend()
