"""Whether the machine drifted: a run's place in the order must not show in its figure.

A balanced random order keeps drift out of the ratios; it still widens their intervals, and where
it is large a study wants a cooler, quieter machine. So it is tested and told.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from coldbench.analysis.stats import ALPHA, Floats, holm
from coldbench.study.metrics import METRICS, known
from coldbench.study.schema import STATES

Effect = Literal["position", "trend"]

_FEWEST_PASSES = 3


@dataclass(frozen=True)
class Slope:
    """A relative change a step (0.004 = +0.4%) with its 95% interval and two-sided p."""

    change: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Drift:
    """A test of one figure of a lane: what one `position` later in a block, or one block, changes.

    `slope` is None where there are too few runs; `adjusted_p` is Holm's over the table's tests.
    """

    model: str
    workload: str
    state: str
    metric: str
    effect: Effect
    runs: int
    slope: Slope | None
    adjusted_p: float | None = None

    @property
    def found(self) -> bool:
        """Return whether there is drift at 5%, the table's other tests counted."""
        return self.adjusted_p is not None and self.adjusted_p <= ALPHA


def position_slope(
    logs: Floats, arms: Sequence[str], passes: Sequence[int], positions: Sequence[int]
) -> Slope | None:
    """Return the change of exp(`logs`) from one position of a pass to the next.

    All are of shape (runs,). Least squares with a level for every arm and for every pass, so that
    neither what the arms are nor how the machine differs between passes can look like an effect
    of the position. None where the runs do not tell these apart.

    Source: the analysis of a row-column (crossover) design; B. Jones and M. G. Kenward (2014),
    Design and Analysis of Cross-Over Trials, 3rd ed., chapter 5.
    """
    levels = np.hstack([_levels(arms), _levels(passes)])
    return _slope(np.asarray(logs, dtype=float), np.asarray(positions, dtype=float), levels)


def trend_slope(logs: Floats, arms: Sequence[str], passes: Sequence[int]) -> Slope | None:
    """Return the change of exp(`logs`) from one pass to the next; `passes` count up in time.

    All are of shape (runs,). The level of each pass, arms taken out, is one point: runs of one
    pass share what the machine did meanwhile and are no replicates of a trend. None with fewer
    than three passes.

    Source: the analysis of summary measures; J. N. S. Matthews et al. (1990), Analysis of serial
    measurements in medical research, BMJ 300:230.
    """
    times = sorted(set(passes))
    if len(times) < _FEWEST_PASSES:
        return None
    columns = np.hstack([_levels(passes), _levels(arms)[:, 1:]])
    fitted = np.linalg.lstsq(columns, np.asarray(logs, dtype=float), rcond=None)[0]
    levels = fitted[: len(times)]
    return _slope(levels, np.asarray(times, dtype=float), np.ones((len(times), 1)))


def drifts(frame: pd.DataFrame) -> list[Drift]:
    """Test every lane of a tidy frame, on its rates where it has any, else on its wall time."""
    found: list[Drift] = []
    usable = frame[frame["latest"].astype(bool) & (frame["value"] > 0)]
    for (model, workload), rows in usable.groupby(["model", "workload"], sort=True):
        rates = [m for m in METRICS if known(m).speed and (rows["metric"] == m).any()]
        table: list[Drift] = []
        for state in STATES:
            for metric in rates or ["wall_s"]:
                lane = rows[(rows["state"] == state) & (rows["metric"] == metric)]
                if len(lane):
                    table += _of_lane(lane, (str(model), str(workload), state, metric))
        tested = [each for each in table if each.slope]
        adjusted = iter(holm([each.slope.p for each in tested if each.slope]))
        found += [replace(d, adjusted_p=next(adjusted)) if d.slope else d for d in table]
    return found


def _of_lane(rows: pd.DataFrame, scope: tuple[str, str, str, str]) -> list[Drift]:
    begun: dict[tuple[int, int], str] = {}
    places = list(zip(rows["block"].tolist(), rows["pass"].tolist(), strict=True))
    for place, started in zip(places, rows["started"].tolist(), strict=True):
        begun[place] = min(started, begun.get(place, started))
    order = {place: rank for rank, place in enumerate(sorted(begun, key=lambda p: (begun[p], p)))}
    passes = [order[place] for place in places]
    logs, arms = np.log(rows["value"].to_numpy(dtype=float)), rows["arm"].tolist()
    slopes: dict[Effect, Slope | None] = {
        "position": position_slope(logs, arms, passes, rows["position"].tolist()),
        "trend": trend_slope(logs, arms, passes),
    }
    return [Drift(*scope, effect, len(rows), slope) for effect, slope in slopes.items()]


def _levels(labels: Sequence[str] | Sequence[int]) -> Floats:
    """Return an indicator column for each distinct label, sorted; shape (runs, labels)."""
    column = np.asarray(labels)
    return np.asarray(column[:, None] == np.unique(column)[None, :], dtype=float)


def _slope(values: Floats, steps: Floats, levels: Floats) -> Slope | None:
    """Regress `values` on `steps` beside `levels`; both first lose what the levels explain.

    Source: the theorem of R. Frisch and F. V. Waugh (1933), Econometrica 1(4).
    """
    degrees = values.size - int(np.linalg.matrix_rank(levels)) - 1
    if degrees < 1:
        return None
    both = np.column_stack([values, steps])
    values, steps = (both - levels @ np.linalg.lstsq(levels, both, rcond=None)[0]).T
    scale = float(steps @ steps)
    if scale < 1e-9 * steps.size:
        return None
    slope = float(steps @ values) / scale
    left = values - slope * steps
    # What is within rounding of an exact fit has no error to speak of.
    error = math.sqrt(max(float(left @ left), 1e-24 * values.size) / degrees / scale)
    half = float(stdtrit(degrees, 1 - ALPHA / 2)) * error
    return Slope(
        change=math.expm1(slope),
        low=math.expm1(slope - half),
        high=math.expm1(slope + half),
        p=float(2 * stdtr(degrees, -abs(slope) / error)),
    )
