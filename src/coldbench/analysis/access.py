"""The access pattern of a trace: what a page cache of a given size can do for it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coldbench.analysis.reuse import (
    MAX_TOUCHES,
    Ints,
    Touches,
    simulated_hits,
    stack_depths,
    touches_of,
)
from coldbench.common.errors import ColdbenchError
from coldbench.sources.traces import Table, Trace
from coldbench.sources.traces.feed import count_pages, distinct, pages_of

PERCENTS = (50, 90, 99)
_CURVE_POINTS = 256
_WINDOWS = 20

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Demand:
    """The cache, in pages, that serves `percent` of all gathers.

    A gather is served when all pages that it touches are in the cache. `lru`: a cache that begins
    empty and evicts the least recently used page; a page's first touch is a miss at any size, so
    it is None where more than 100 - `percent` percent of the gathers touch a new page. `hottest`:
    a cache that holds the most touched pages from the beginning, as a primed one would.
    """

    percent: int
    lru: int | None
    hottest: int


@dataclass(frozen=True)
class Curve:
    """The share of gathers served by caches of `pages` pages: a reuse-distance curve."""

    pages: npt.NDArray[np.int64]
    lru: npt.NDArray[np.float64]
    hottest: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """After `gathers` gathers: distinct pages since the beginning, and since the last window."""

    gathers: int
    pages_so_far: int
    pages: int


@dataclass(frozen=True)
class Head:
    """The gathers of one head (of a token's n-th row): distinct rows and pages, and their range."""

    gathers: int
    rows_unique: int
    pages_unique: int
    first_row: int
    last_row: int


@dataclass(frozen=True)
class AccessPattern:
    """The report on a trace; shares are of 1, `same_page` is None for a single gather.

    `same_page` is the share of consecutive gathers that touch a page in common, `new_page` that of
    gathers that touch a page for the first time. `touches` are the pages of all gathers, counted
    each time.
    """

    table: Table
    kind: str
    gathers: int
    per_token: int
    rows_unique: int
    pages_unique: int
    touches: int
    same_page: float | None
    new_page: float
    demands: tuple[Demand, ...]
    curve: Curve
    windows: tuple[Window, ...]
    heads: tuple[Head, ...]


def access_pattern(trace: Trace) -> AccessPattern:
    """Analyse a trace, by pages of this machine's size in the order of the gathers.

    A row that spans pages touches them in ascending order. Raises ColdbenchError for a trace too
    long for 32-bit positions, and if libcachesim's LRU does not agree at a size that is reported.
    """
    first, last = pages_of(trace.table, trace.rows)
    spans = last - first + 1
    count, touches = len(first), int(spans.sum())
    if touches > MAX_TOUCHES:
        raise ColdbenchError(f"the trace touches {touches:,} pages; up to {MAX_TOUCHES:,} will do")
    begins = np.cumsum(spans) - spans
    pages = first
    if touches > count:
        pages = np.repeat(first - begins, spans) + np.arange(touches)
    touched = touches_of(pages)
    depths = stack_depths(touched.previous)
    lru = _deepest(np.where(depths > 0, depths, MAX_TOUCHES), begins)
    hottest = _deepest(_popularity_ranks(touched), begins)
    new = float((lru == MAX_TOUCHES).mean())
    # In order, what is never served comes last.
    lru.sort()
    hottest.sort()
    demands = tuple(_demand(percent, lru, hottest) for percent in PERCENTS)
    _check(touched, depths, [demand.lru for demand in demands if demand.lru is not None])
    together = (first[1:] <= last[:-1]) & (first[:-1] <= last[1:])
    return AccessPattern(
        table=trace.table,
        kind=trace.kind,
        gathers=count,
        per_token=trace.per_token,
        rows_unique=len(distinct(trace.rows)),
        pages_unique=len(touched.counts),
        touches=touches,
        same_page=float(together.mean()) if count > 1 else None,
        new_page=new,
        demands=demands,
        curve=_curve(len(touched.counts), lru, hottest),
        windows=_windows(touched.previous, np.append(begins, touches)),
        heads=tuple(_head(trace, head) for head in range(trace.per_token)),
    )


def _deepest(of_touches: Ints, begins: Positions) -> Ints:
    """Return for each gather the largest value of its touches."""
    if len(of_touches) == len(begins):
        return of_touches
    return np.maximum.reduceat(of_touches, begins)


def _popularity_ranks(touched: Touches) -> Ints:
    """Return for each touch the rank of its page, 1 for the most touched; ties by page number."""
    ranks = np.empty_like(touched.counts)
    ranks[np.argsort(-touched.counts, kind="stable")] = np.arange(1, len(ranks) + 1)
    return ranks[touched.page]


def _demand(percent: int, lru: Ints, hottest: Ints) -> Demand:
    last = -(-len(lru) * percent // 100) - 1
    depth = int(lru[last])
    return Demand(percent, None if depth == MAX_TOUCHES else depth, int(hottest[last]))


def _check(touched: Touches, depths: Ints, sizes: list[int]) -> None:
    """Compare our count of hits with the simulator's, by touches."""
    for size, simulated in zip(sizes, simulated_hits(touched.page, sizes), strict=True):
        counted = int(((depths > 0) & (depths <= size)).sum())
        if counted != simulated:
            raise ColdbenchError(
                f"an LRU cache of {size:,} pages: {counted:,} hits counted, {simulated:,} "
                "simulated by libcachesim; do not use this report, and report a fault of coldbench"
            )


def _curve(unique: int, lru: Ints, hottest: Ints) -> Curve:
    sizes = np.unique(np.geomspace(1, unique, _CURVE_POINTS).round().astype(np.int64))
    return Curve(
        sizes,
        np.searchsorted(lru, sizes, side="right") / len(lru),
        np.searchsorted(hottest, sizes, side="right") / len(hottest),
    )


def _windows(previous: Ints, begins: Positions) -> tuple[Window, ...]:
    """Return up to _WINDOWS windows of gathers; `begins` holds each gather's first touch."""
    count = len(begins) - 1
    edges = np.unique(np.linspace(0, count, min(_WINDOWS, count) + 1).round().astype(np.int64))
    so_far, found = 0, []
    for gathers, begin, end in zip(edges[1:], begins[edges[:-1]], begins[edges[1:]], strict=True):
        window = previous[begin:end]
        so_far += int((window < 0).sum())
        found.append(Window(int(gathers), so_far, int((window < begin).sum())))
    return tuple(found)


def _head(trace: Trace, head: int) -> Head:
    rows = trace.rows[head :: trace.per_token]
    unique = distinct(rows)
    return Head(
        len(rows),
        len(unique),
        count_pages(trace.table, unique),
        int(unique[0]),
        int(unique[-1]),
    )
