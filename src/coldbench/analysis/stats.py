"""The statistics of few, paired measurements: pure functions on the log ratios of the blocks.

A log ratio is ln(treatment / control) of one block. All functions are unchanged by the order of
the blocks and by a common factor on both arms, and mirror when the arms are swapped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit
from scipy.stats import permutation_test

from coldbench.study.metrics import Better

Floats = NDArray[np.float64]
Status = Literal["faster", "slower", "equivalent", "inconclusive", "not comparable"]

ALPHA = 0.05
FLOOR = 0.01
"""The smallest effect that is ever claimed: 1%."""

CLEAR = 0.10
"""With fewer than ENOUGH blocks a claim is exploratory unless its interval clears this."""

NOT_INTERLEAVED = "not interleaved"

FEWEST = 3
"""Below this many blocks there is no verdict."""

ENOUGH = 6
"""From this many blocks the exact sign-flip test can reach p <= 0.05 (2 / 2**6 = 0.031)."""

_EXACT_UP_TO = 20
_MOST_BLOCKS = 10_000


@dataclass(frozen=True)
class Ratio:
    """Treatment over control with its confidence interval; no interval from a single block."""

    ratio: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Verdict:
    """What a comparison has shown.

    `faster` means better in the metric's own direction. `reason` says what stands in the way of
    a claim or qualifies it. `blocks` is the number of blocks that would resolve the margin if
    the effect and the scatter stayed what they are; None where no number is known to.
    """

    status: Status
    ratio: Ratio | None = None
    reason: str = ""
    exploratory: bool = False
    blocks: int | None = None
    p: float | None = None
    adjusted_p: float | None = None
    sign_flip_p: float | None = None
    tost_p: float | None = None


def log_ratios(treatment: ArrayLike, control: ArrayLike) -> Floats:
    """Return ln(treatment / control) of paired values of any one unit, shape (n,).

    Raises ValueError unless both are one-dimensional, equally long, positive and finite.
    """
    above, below = np.asarray(treatment, dtype=float), np.asarray(control, dtype=float)
    if above.ndim != 1 or above.shape != below.shape:
        raise ValueError("paired values must be two equally long one-dimensional arrays")
    both = np.concatenate([above, below])
    if not (np.isfinite(both) & (both > 0)).all():
        raise ValueError("a log ratio needs positive, finite values")
    # A difference of logarithms, not a logarithm of a quotient: it mirrors exactly on a swap.
    ratios: Floats = np.log(above) - np.log(below)
    return ratios


def paired_ratio(treatment: ArrayLike, control: ArrayLike, confidence: float = 0.95) -> Ratio:
    """Return exp(mean log ratio) with the paired t interval taken on the log ratios.

    Source: D. G. Altman and J. M. Bland (1996), Transforming data, BMJ 312:770 (a mean of logs
    is a geometric mean, its interval transforms back); Student's paired t of any textbook.
    """
    return ratio_of(log_ratios(treatment, control), confidence)


def ratio_of(log_ratios: ArrayLike, confidence: float = 0.95) -> Ratio:
    """Return `paired_ratio` of log ratios that are at hand already.

    Raises ValueError where there are none.
    """
    sample = _sample(log_ratios)
    mean = _mean(sample)
    if sample.size < 2:
        return Ratio(_exp(mean), None, None, sample.size)
    half = _half_width(sample, confidence)
    return Ratio(_exp(mean), _exp(mean - half), _exp(mean + half), sample.size)


def half_width(ratio: Ratio) -> float | None:
    """Return half the width of a ratio's interval, relative: 0.03 where it is within 3% of it.

    It is taken on the log scale, and so the same when the arms are swapped; None without an
    interval.
    """
    if ratio.low is None or ratio.high is None:
        return None
    return math.expm1((math.log(ratio.high) - math.log(ratio.low)) / 2)


def blocks_for(margin: float, noise: float) -> int | None:
    """Return how many blocks an interval within `margin` takes, at least ENOUGH.

    Both are relative; `noise` is the standard deviation of one run, so that a block's ratio has
    sqrt(2) times as much. None where 10,000 are too few.

    Source: as of `blocks_needed`.
    """
    allowed = np.log1p(margin) / (math.sqrt(2) * np.log1p(noise))
    enough = np.flatnonzero(_half_widths() <= allowed)
    return ENOUGH + int(enough[0]) if enough.size else None


def paired_t_p(log_ratios: ArrayLike) -> float:
    """Return the two-sided p-value of the paired t test of no difference; needs 2 blocks.

    Blocks that agree to the last bit give 1 where the arms are equal, 0 where they are not.

    Source: Student (1908), The probable error of a mean, Biometrika 6(1).
    """
    sample = _sample(log_ratios, least=2)
    return float(2 * stdtr(sample.size - 1, -abs(_t(sample, 0.0))))


def sign_flip_p(log_ratios: ArrayLike) -> float:
    """Return the two-sided p-value of the sign-flip (paired permutation) test of the mean.

    Exact by enumeration up to 20 blocks, above that from 9,999 random flips of a fixed seed.

    Source: R. A. Fisher (1935), The Design of Experiments, section 21; B. Phipson and
    G. K. Smyth (2010), Permutation p-values should never be zero, SAGMB 9(1), for the latter.
    """
    sample = _sample(log_ratios)
    if sample.size > _EXACT_UP_TO:
        result = permutation_test(
            (np.sort(sample),),
            lambda x, axis: np.mean(x, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=9_999,
            rng=np.random.default_rng(1),
        )
        return float(result.pvalue)
    # The first sign may stay: flipping every sign mirrors the sum and changes no |sum|.
    sums = sample[:1]
    for value in sample[1:]:
        sums = np.concatenate([sums + value, sums - value])
    # Sums of the same terms in another order differ by rounding and must count as ties.
    slack = 1e-12 * np.abs(sample).sum()
    return float(np.mean(np.abs(sums) >= abs(sample.sum()) - slack))


def tost_p(log_ratios: ArrayLike, margin: float) -> float:
    """Return the p-value of two one-sided tests: small where |effect| < `margin` is shown.

    `margin` is relative (0.03 = 3%); the bounds are 1 + margin and its inverse, so that they
    mirror when the arms are swapped. Needs 2 blocks.

    Source: D. J. Schuirmann (1987), A comparison of the two one-sided tests procedure and the
    power approach, J. Pharmacokinet. Biopharm. 15(6).
    """
    sample = _sample(log_ratios, least=2)
    bound = np.log1p(margin)
    degrees = sample.size - 1
    return float(max(stdtr(degrees, -_t(sample, -bound)), stdtr(degrees, _t(sample, bound))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number, in the order given.

    Source: S. Holm (1979), A simple sequentially rejective multiple test procedure, Scand. J.
    Stat. 6(2).
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


def blocks_needed(log_ratios: ArrayLike, margin: float, floor: float = FLOOR) -> int | None:
    """Return how many blocks would resolve the margin, at least ENOUGH.

    That is: the fewest at which the 95% interval, with today's scatter, is narrow enough to
    leave either 1 or the margin outside. Around no effect its half width must be within the
    margin; around an effect within what separates that effect from 1 (if it exceeds `floor`
    and so could be claimed) or from the margin, whichever is farther. None where 10,000 blocks
    are too few or the effect lies outside the margin but under the floor. Needs 2 blocks.

    Source: the half width t * s / sqrt(n) solved for n; see W. G. Cochran (1977), Sampling
    Techniques, section 4.7.
    """
    sample = _sample(log_ratios, least=2)
    effect = abs(_mean(sample))
    within = np.log1p(margin) - effect
    allowed = max(effect, within) if effect > np.log1p(floor) else within
    if allowed <= 0:
        return None
    enough = np.flatnonzero(_deviation(sample) * _half_widths() <= allowed)
    return ENOUGH + int(enough[0]) if enough.size else None


def decide(
    log_ratios: ArrayLike,
    *,
    better: Better,
    margin: float,
    aa_spread: float = 0.0,
    adjusted_p: float | None = None,
    interleaved: bool = True,
) -> Verdict:
    """Return the verdict on a comparison from the log ratios of its blocks.

    A difference is claimed where the 95% interval excludes 1, the effect exceeds 1% and
    `aa_spread` (relative), `adjusted_p` (Holm's; by default the plain p) is at most 0.05 and,
    from 6 blocks on, so is the exact sign-flip p. With 3 to 5 blocks the claim is exploratory
    unless the interval clears 10%; runs that were not interleaved are always exploratory.
    Equivalence is claimed by two one-sided tests inside `margin` with at least 6 blocks.
    """
    sample = _sample(log_ratios)
    ratio = ratio_of(sample)
    n = sample.size
    if n < FEWEST:
        return Verdict("inconclusive", ratio, f"too few blocks: {n}, a verdict needs {FEWEST}")
    p = paired_t_p(sample)
    adjusted = p if adjusted_p is None else adjusted_p
    flip = sign_flip_p(sample) if n >= ENOUGH else None
    tost = tost_p(sample, margin)
    mean, half = _mean(sample), _half_width(sample, 1 - ALPHA)
    floor = max(FLOOR, aa_spread)
    blocks = None

    obstacles = []
    if adjusted > ALPHA:
        obstacles.append(f"p = {adjusted:.2g} after Holm's correction")
    if abs(mean) <= np.log1p(floor):
        spread = "the A/A spread of " if aa_spread > FLOOR else ""
        obstacles.append(f"effect within {spread}{_percent(floor)}")
    if flip is not None and flip > ALPHA:
        obstacles.append(f"sign-flip p = {flip:.2g}")
    if abs(mean) <= half:
        obstacles.append("interval includes 1")

    status: Status
    remarks: list[str] = []
    exploratory = not interleaved
    if not obstacles:
        status = "faster" if (mean > 0) == (better == "higher") else "slower"
        if n < ENOUGH and abs(mean) - half <= np.log1p(CLEAR):
            exploratory = True
            remarks.append(f"{n} blocks")
        if tost <= ALPHA:
            remarks.append(f"inside the margin of {_percent(margin)}")
    elif n >= ENOUGH and tost <= ALPHA:
        status = "equivalent"
        remarks.append(f"within {_percent(margin)}")
        if aa_spread > margin:
            remarks.append(f"but the A/A pair differs by {_percent(aa_spread)}")
    else:
        status = "inconclusive"
        # That the interval includes 1 stands beside it already.
        remarks += obstacles if abs(mean) > half else []
        needed = blocks_needed(sample, margin, floor)
        if needed is not None and needed > n:
            blocks = needed
    if not interleaved:
        remarks.append(NOT_INTERLEAVED)
    return Verdict(
        status=status,
        ratio=ratio,
        reason="; ".join(remarks),
        exploratory=exploratory and status != "inconclusive",
        blocks=blocks,
        p=p,
        adjusted_p=adjusted,
        sign_flip_p=flip,
        tost_p=tost,
    )


def _sample(log_ratios: ArrayLike, least: int = 1) -> Floats:
    sample = np.asarray(log_ratios, dtype=float)
    if sample.ndim != 1 or sample.size < least or not np.isfinite(sample).all():
        raise ValueError(f"needs at least {least} finite log ratios in one dimension")
    return sample


def _mean(sample: Floats) -> float:
    # fsum rounds once, so that neither order nor sign of the blocks can move the last bit.
    # Equal values are their own mean; a quotient may miss it.
    return float(sample[0]) if _constant(sample) else math.fsum(sample) / sample.size


def _deviation(sample: Floats) -> float:
    if _constant(sample):
        return 0.0
    return math.sqrt(math.fsum((sample - _mean(sample)) ** 2) / (sample.size - 1))


def _constant(sample: Floats) -> bool:
    return bool((sample == sample[0]).all())


def _half_width(sample: Floats, confidence: float) -> float:
    quantile = stdtrit(sample.size - 1, (1 + confidence) / 2)
    return float(quantile * _deviation(sample) / np.sqrt(sample.size))


@cache
def _half_widths() -> Floats:
    """Return the half width of the 95% interval in deviations, from ENOUGH blocks upwards."""
    n = np.arange(ENOUGH, _MOST_BLOCKS + 1)
    widths: Floats = stdtrit(n - 1, 1 - ALPHA / 2) / np.sqrt(n)
    return widths


def _t(sample: Floats, hypothesis: float) -> float:
    difference = _mean(sample) - hypothesis
    error = _deviation(sample) / np.sqrt(sample.size)
    if error == 0:
        return float(np.copysign(np.inf, difference)) if difference else 0.0
    return float(difference / error)


def _exp(value: float) -> float:
    # Two blocks can have an interval beyond what a float holds.
    return float(np.exp(np.clip(value, -700, 700)))


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"
