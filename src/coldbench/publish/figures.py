"""Numbers as text: units, digits and words, the same in every kind of markup."""

import math
from dataclasses import dataclass

from coldbench.analysis.verdicts import VerdictRow
from coldbench.study.metrics import Kind, known

MISSING = "n/a"

_LABELS = {
    "prompt_tps": "prompt",
    "generation_tps": "generation",
    "ns_per_gather": "gather",
    "ns_per_page": "a page",
    "pages_unique": "pages touched",
    "hints": "hints",
    "s_per_token": "a token",
    "first_token_s": "first token",
    "request_s": "whole request",
    "bytes_per_token": "bytes a token",
    "overlap": "reads overlapped",
    "retained_bytes": "retained",
    "wall_s": "wall time",
    "load_s": "load time",
    "peak_rss_bytes": "peak RSS",
    "server_peak_rss_bytes": "peak RSS of the RPC server",
    "anon_at_peak_bytes": "anonymous at peak",
    "file_at_peak_bytes": "file-backed at peak",
    "read_bytes": "bytes read",
    "read_bytes_per_token": "bytes read a generated token",
    "major_faults": "major faults",
    "table_residency": "table resident after",
    "table_residency_before": "table resident before",
}

_GIB_FROM = 10 * 2**30
"""A column is in GiB if its largest value reaches this, else in MiB."""


@dataclass(frozen=True)
class Unit:
    """How the figures of a column are shown: divided by `per`, named `name`."""

    kind: Kind
    per: float = 1.0
    name: str = ""


def label(metric: str) -> str:
    """Return what a metric is called in a table; a user's own has its name."""
    return _LABELS.get(metric, metric)


def unit_for(metric: str, largest: float, own: str = "") -> Unit:
    """Return the unit of a column whose largest value is `largest`; `own` names a user's unit."""
    kind = known(metric).kind
    if kind == "bytes":
        return Unit(kind, 2**30, "GiB") if largest >= _GIB_FROM else Unit(kind, 2**20, "MiB")
    if kind == "share":
        return Unit(kind, 0.01, "%")
    return Unit(kind, 1.0, known(metric).unit or {"rate": "t/s", "time": "s"}.get(kind, own))


def spread(median: float, low: float, high: float, unit: Unit) -> str:
    """Return `median (low–high)`, all with the digits of the median; one number if they agree."""
    decimals = _decimals(median or high, unit)
    texts = [_digits(value / unit.per, decimals) for value in (median, low, high)]
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} ({texts[1]}–{texts[2]})"


def ratio(value: float | None, like: float | None = None) -> str:
    """Return a ratio as text, with the digits that suit `like` (by default itself)."""
    if value is None:
        return MISSING
    if value >= 1e5 or value < 1e-5:
        return f"{value:.1e}"
    guide = abs(value if like is None else like)
    if guide >= 0.1:
        decimals = 3 if guide < 10 else 1 if guide < 100 else 0
    else:
        decimals = min(7, 2 - _magnitude(guide))
    return f"{value:,.{decimals}f}"


def interval(low: float | None, high: float | None, like: float) -> str:
    """Return the interval of a ratio as text, with the digits of the ratio `like`."""
    return MISSING if low is None else f"{ratio(low, like)}–{ratio(high, like)}"


def word(row: VerdictRow) -> str:
    """Return the verdict in the words of the metric: faster is for rates and times only.

    Of bytes, counts and shares it is said which way they went, higher or lower; of a figure of
    the user's own, whether it is better or worse.
    """
    verdict = row.verdict
    if verdict.status == "not comparable":
        return verdict.status
    if row.control:
        if row.alarm:
            return "ALARM"
        if verdict.p is None:
            return "too few blocks"
        return "agrees" if verdict.status == "equivalent" else "no alarm"
    if verdict.status not in {"faster", "slower"}:
        return verdict.status
    kind = known(row.claim.metric).kind
    if kind in {"rate", "time"}:
        return verdict.status
    if kind == "other":
        return "better" if verdict.status == "faster" else "worse"
    assert verdict.ratio is not None  # a claim rests on one
    return "higher" if verdict.ratio.ratio > 1 else "lower"


def _digits(value: float, decimals: int) -> str:
    return "0" if value == 0 else f"{value:,.{decimals}f}"


def _decimals(value: float, unit: Unit) -> int:
    shown = value / unit.per
    if unit.kind == "count":
        return 0 if shown.is_integer() else 1
    if unit.kind == "share":
        return 1 if shown >= 0.1 else 3
    # Three significant digits, but tenths up to 1000: differences of a few per mille show.
    magnitude = _magnitude(shown)
    return 1 if magnitude == 2 else max(0, min(6, 2 - magnitude))


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
