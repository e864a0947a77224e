"""Verdicts on the declared comparisons, and on the A/A pairs that they are held against."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pandas as pd

from coldbench.analysis.stats import (
    FEWEST,
    NOT_INTERLEAVED,
    Verdict,
    decide,
    half_width,
    holm,
    log_ratios,
    paired_t_p,
    ratio_of,
)
from coldbench.analysis.summary import Cell, Outcome, Pairs, outcomes, pairs
from coldbench.common.errors import ColdbenchError
from coldbench.study.metrics import METRICS, Better, known
from coldbench.study.schema import State
from coldbench.study.specs import Claim

ON_BUSY = "measured on a busy machine"

CONTROL_MARGIN = 0.03
"""Inside this an A/A pair counts as shown to agree; it decides only how its row is worded."""


@dataclass(frozen=True)
class VerdictRow:
    """A claim with its verdict; `aa_spread` (relative) is None where the study has no A/A pair.

    `control` marks an A/A pair: a comparison whose outcome, no difference, is known.
    """

    claim: Claim
    verdict: Verdict
    aa_spread: float | None = None
    control: bool = False

    @property
    def alarm(self) -> bool:
        """Return whether a control shows a difference that cannot be there."""
        return self.control and self.verdict.status in {"faster", "slower"}


@dataclass(frozen=True)
class _Tested:
    """A claim with its pairs; `reason` says why it is not comparable, `busy` that it is suspect."""

    claim: Claim
    pairs: Pairs
    reason: str
    busy: bool

    @property
    def log_ratios(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return log_ratios(self.pairs.treatment, self.pairs.control)


_Scope = tuple[str, str, str, str]


def verdicts(
    frame: pd.DataFrame, comparisons: Iterable[Claim], aa_pairs: Sequence[tuple[str, str]]
) -> list[VerdictRow]:
    """Judge every claim, in the order given, then every A/A pair (arm, twin) as a control.

    The A/A spread that an effect must exceed is, for the same model, workload, cache state and
    metric, |ratio - 1| of the A/A pair's own effect, upwards, and the largest of several pairs.
    It is the point estimate on purpose: that is what this very experiment reports where nothing
    differs, position, drift and noise together. The ends of the A/A interval would count the
    noise twice, since a claim's own interval has to exclude 1 already; with three blocks they
    would swallow effects of tens of per cent.

    Holm's correction runs over all claims that have a test (three pairs or more). Controls
    form a family of their own: a study with twenty of them would else raise a false alarm more
    often than not.

    A cell with a block that has no ok run is never ranked: what failed may be what was slow. Of
    runs on a busy machine no difference and no equivalence is claimed.

    Raises ColdbenchError for a claim on a metric whose direction is not known.
    """
    became = outcomes(frame)
    claims = [_paired(frame, became, claim) for claim in comparisons]
    claims_of = {_scope(tested.claim) for tested in claims}
    controls = [_paired(frame, became, claim) for claim in _controls(frame, claims_of, aa_pairs)]
    spreads: dict[_Scope, float] = {}
    for tested in controls:
        if not tested.reason:
            spread = float(np.expm1(abs(tested.log_ratios.mean())))
            scope = _scope(tested.claim)
            spreads[scope] = max(spread, spreads.get(scope, 0.0))
    return [*_judged(claims, spreads), *_judged(controls, None)]


def unresolved(frame: pd.DataFrame, claims: Iterable[Claim], width: float) -> list[Claim]:
    """Return the claims whose 95% interval is wider than `width` (relative, each way).

    Whether the interval includes 1 plays no part, so that stopping favours no verdict. A claim
    that is not comparable is not among them: more blocks cannot change that.
    """
    became = outcomes(frame)
    wide = []
    for claim in claims:
        tested = _paired(frame, became, claim)
        if tested.reason:
            continue
        half = half_width(ratio_of(tested.log_ratios))
        if half is None or half > width:
            wide.append(claim)
    return wide


def _judged(family: Sequence[_Tested], spreads: dict[_Scope, float] | None) -> list[VerdictRow]:
    testable = [
        index
        for index, tested in enumerate(family)
        if not tested.reason and len(tested.pairs.blocks) >= FEWEST
    ]
    adjusted = holm([paired_t_p(family[index].log_ratios) for index in testable])
    adjusted_of = dict(zip(testable, adjusted, strict=True))
    rows = []
    for index, tested in enumerate(family):
        spread = None if spreads is None else spreads.get(_scope(tested.claim))
        if tested.reason:
            verdict = Verdict("not comparable", reason=tested.reason)
        else:
            verdict = decide(
                tested.log_ratios,
                better=_better(tested.claim),
                margin=tested.claim.margin,
                aa_spread=spread or 0.0,
                adjusted_p=adjusted_of.get(index),
                interleaved=tested.pairs.interleaved,
            )
            if tested.busy:
                apart = [] if tested.pairs.interleaved else [NOT_INTERLEAVED]
                verdict = replace(
                    verdict,
                    status="inconclusive",
                    reason="; ".join([ON_BUSY, *apart]),
                    exploratory=False,
                    blocks=None,
                )
        rows.append(VerdictRow(tested.claim, verdict, spread, control=spreads is None))
    return rows


def _paired(frame: pd.DataFrame, became: Mapping[Cell, Outcome], claim: Claim) -> _Tested:
    found = pairs(
        frame,
        model=claim.model,
        workload=claim.workload,
        state=claim.state,
        metric=claim.metric,
        treatment=claim.treatment,
        control=claim.control,
    )
    ends = {
        arm: end
        for arm in (claim.treatment, claim.control)
        if (end := became.get((claim.model, claim.workload, claim.state, arm)))
    }
    reason = _incomplete(ends) or _not_comparable(claim, found)
    return _Tested(claim, found, reason, busy=any(end.busy for end in ends.values()))


def _incomplete(ends: Mapping[str, Outcome]) -> str:
    said = [
        f"{'exceeded the budget' if end.over_budget else 'incomplete'}: {arm} {end}"
        for arm, end in ends.items()
        if not end.complete
    ]
    return "; ".join(said)


def _not_comparable(claim: Claim, found: Pairs) -> str:
    n = len(found.blocks)
    if n == 0:
        return "no block has this figure of both arms"
    zeros = {
        arm: int((side <= 0).sum())
        for arm, side in ((claim.treatment, found.treatment), (claim.control, found.control))
    }
    if all(count == n for count in zeros.values()):
        return "0 in both arms"
    places = [f"{arm} in {count} of {n} blocks" for arm, count in zeros.items() if count]
    return f"no ratio with 0: {', '.join(places)}" if places else ""


def _controls(
    frame: pd.DataFrame, claimed: set[_Scope], aa_pairs: Sequence[tuple[str, str]]
) -> Iterable[Claim]:
    """Yield an A/A comparison for every claimed metric, and for the rates whether claimed or not.

    Where neither arm of a pair has a run there is nothing to report.
    """
    measured = frame[frame["value"].notna()]
    for arm, twin in aa_pairs:
        rows = measured[measured["arm"].isin([arm, twin])]
        scopes = set(zip(*(rows[name].tolist() for name in _SCOPE), strict=True))
        for model, workload, state, metric in sorted(scopes, key=_table_order):
            scope = (model, workload, state, metric)
            if scope in claimed or known(metric).speed:
                yield Claim(
                    name="A/A",
                    model=model,
                    workload=workload,
                    state=cast(State, state),
                    metric=metric,
                    treatment=twin,
                    control=arm,
                    margin=CONTROL_MARGIN,
                    better=METRICS[metric].better if metric in METRICS else "higher",
                )


_SCOPE = ("model", "workload", "state", "metric")


def _table_order(scope: _Scope) -> tuple[str, str, str, int, str]:
    model, workload, state, metric = scope
    order = list(METRICS)
    place = order.index(metric) if metric in METRICS else len(order)
    return model, workload, state, place, metric


def _scope(claim: Claim) -> _Scope:
    return claim.model, claim.workload, claim.state, claim.metric


def _better(claim: Claim) -> Better:
    better = claim.better or known(claim.metric).better
    if better is None:
        raise ColdbenchError(
            f"comparisons.{claim.name}: whether {claim.metric} is better higher or lower is not "
            "known; add `better: higher` or `better: lower`"
        )
    return better
