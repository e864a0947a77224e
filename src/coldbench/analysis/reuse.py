"""Reuse distances of a page trace: how deep in an LRU stack each touch finds its page.

The exact depths (Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies,
IBM Systems Journal 9(2), 1970) are computed here, all at once by numpy in O(n log n). The Python
package libcachesim has no miss-ratio curve, only a simulator that takes one cache size a pass (its
analyzer's reuse tables count time, not distinct pages); so it is used for what it is exact at:
`simulated_hits` is the second opinion on the sizes that are published.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coldbench.common.folders import cache_folder
from coldbench.common.scratch import scratch

Ints = npt.NDArray[np.int32]

MAX_TOUCHES = 2**31 - 1

# libCacheSim's oracleGeneral: time, object, size, time of the next access (unknown).
_REQUEST = np.dtype([("time", "<u4"), ("page", "<u8"), ("size", "<u4"), ("next", "<i8")])
_UNKNOWN = -2

_LOW_BITS = 7
_CHUNK = 1 << 16  # items: what is computed of them stays in the processor's cache


@dataclass(frozen=True)
class Touches:
    """A page trace in numbers of its own.

    `page` numbers the distinct pages from 0 on in ascending order, touch by touch; `previous` is
    the position of the touch before of the same page, -1 for its first; `counts` are the touches
    of each page.
    """

    page: Ints
    previous: Ints
    counts: Ints


def touches_of(pages: npt.NDArray[np.int64]) -> Touches:
    """Number the pages (from 0 to 2^31 - 1) of a trace of up to MAX_TOUCHES touches."""
    count = len(pages)
    # One key of both: numpy sorts whole numbers much faster than it finds their order.
    keys = (pages << 32) | np.arange(count)
    keys.sort()
    order = (keys & 0xFFFFFFFF).astype(np.int32)
    keys >>= 32
    new = np.ones(count, dtype=bool)
    new[1:] = keys[1:] != keys[:-1]
    page, previous = np.empty(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    page[order] = np.cumsum(new, dtype=np.int32) - 1
    again = np.flatnonzero(~new)
    previous[order[again]] = order[again - 1]
    counts = np.diff(np.append(np.flatnonzero(new), count)).astype(np.int32)
    return Touches(page, previous, counts)


def stack_depths(previous: Ints) -> Ints:
    """Return the LRU stack depth of each touch, 0 for a page's first.

    A cache of `s` pages that evicts the least recently used one has the page at touch i exactly
    where 1 <= depth[i] <= s. `previous` is that of `Touches`.
    """
    # Between touch i and the one before it at p lie as many distinct pages as touches j < i with
    # previous[j] < p, less the p + 1 touches up to p, which all fulfil that.
    again = np.flatnonzero(previous >= 0)
    before = previous[again]
    marked = np.zeros(len(previous), dtype=np.int32)
    marked[before] = 1
    ranks = np.cumsum(marked, dtype=np.int32)[before] - 1
    firsts = np.cumsum(previous < 0, dtype=np.int32)[again]
    depths = np.zeros(len(previous), dtype=np.int32)
    depths[again] = firsts + _smaller_before(ranks) - before
    return depths


def simulated_hits(pages: Ints, sizes: Sequence[int]) -> list[int]:
    """Return how many touches hit in LRU caches of `sizes` pages, by libcachesim's simulator."""
    if not sizes:
        return []
    # It makes a folder in the user's cache when it is imported: only who asks shall have that.
    from libcachesim import LRU, TraceReader, TraceType

    requests = np.zeros(len(pages), dtype=_REQUEST)
    requests["page"], requests["size"], requests["next"] = pages, 1, _UNKNOWN
    hits = []
    with scratch(cache_folder(), "lru") as folder:
        path = folder / "trace"
        requests.tofile(path)
        for size in sizes:
            cache = LRU(size, hashpower=max(10, size.bit_length()))
            reader = TraceReader(str(path), TraceType.ORACLE_GENERAL_TRACE)
            missed, _ = cache.process_trace(reader)
            hits.append(round((1 - missed) * len(pages)))
    return hits


def _smaller_before(values: Ints) -> Ints:
    """Return for each item of a permutation of 0..n-1 how many smaller ones come before it.

    The permutation is sorted bit by bit from the highest. Items that agree in the bits above lie
    together, from the place on that these bits say, since none is missing; among them, each with
    a one in this bit passes the zeros after which it came. The lowest bits, where groups are
    small, are left to comparing all with all.
    """
    count = len(values)
    current, passed = values.copy(), np.zeros(count, dtype=np.int32)
    ordered, carried = np.empty_like(current), np.empty_like(passed)
    places = np.arange(count, dtype=np.int32)
    for bit in reversed(range(_LOW_BITS, (count - 1).bit_length() if count else 0)):
        seen = 0
        for begin in range(0, count, _CHUNK):
            part = slice(begin, begin + _CHUNK)
            chunk, before = current[part], passed[part]
            zero = (chunk & (1 << bit)) == 0
            zeros = np.cumsum(zero, dtype=np.int32)
            zeros += seen
            seen = int(zeros[-1])
            # Of the places before its group half are zeros': only the group's own are counted.
            half = (chunk >> (bit + 1)) << bit
            zeros -= half
            target = np.where(zero, 2 * half + zeros - 1, places[part] - zeros + (1 << bit))
            ordered[target] = chunk
            carried[target] = before + np.where(zero, 0, zeros)
        current, ordered, passed, carried = ordered, current, carried, passed
    passed += _smaller_before_in_group(current)
    by_value = np.empty_like(passed)
    by_value[current] = passed
    return by_value[values]


def _smaller_before_in_group(values: Ints) -> Ints:
    """Return how many smaller ones come before each item among its 2^_LOW_BITS neighbours."""
    size, count = 1 << _LOW_BITS, len(values)
    low = np.full(-(-count // size) * size, size - 1, dtype=np.uint8)
    low[:count] = values & (size - 1)
    # An item's place in the group is the row here, so that a comparison is one of long rows.
    low = np.ascontiguousarray(low.reshape(-1, size).T)
    before = np.zeros_like(low)
    for place in range(1, size):
        np.sum(low[:place] < low[place], axis=0, dtype=np.uint8, out=before[place])
    return before.T.reshape(-1)[:count].astype(np.int32)
