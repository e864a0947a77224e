"""Reuse distances of a page trace: how deep in an LRU stack each touch finds its page.

The exact depths (Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies,
IBM Systems Journal 9(2), 1970) are computed here, all at once by numpy in O(n log n). The Python
package libcachesim has no miss-ratio curve, only a simulator that takes one cache size a pass (its
analyzer's reuse tables count time, not distinct pages); so it is used for what it is exact at:
`simulated_hits` is the second opinion on the sizes that are published.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

MAX_TOUCHES = 2**31 - 1

# libCacheSim's oracleGeneral: time, object, size, time of the next access (unknown).
_REQUEST = np.dtype([("time", "<u4"), ("page", "<u8"), ("size", "<u4"), ("next", "<i8")])
_UNKNOWN = -2


def previous_touches(pages: npt.NDArray[Any]) -> Ints:
    """Return for each touch the position of the one before it of the same page, -1 if none."""
    order = np.argsort(pages, kind="stable").astype(np.int32)
    ordered = pages[order]
    again = ordered[1:] == ordered[:-1]
    previous = np.full(len(pages), -1, dtype=np.int32)
    previous[order[1:][again]] = order[:-1][again]
    return previous


def stack_depths(previous: Ints) -> Ints:
    """Return the LRU stack depth of each touch, 0 for a page's first.

    A cache of `s` pages that evicts the least recently used one has the page at touch i exactly
    where 1 <= depth[i] <= s. `previous` is that of `previous_touches`.
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


def simulated_hits(pages: npt.NDArray[Any], sizes: list[int]) -> list[int]:
    """Return how many touches hit in LRU caches of `sizes` pages, by libcachesim's simulator."""
    if not sizes:
        return []
    # It makes a folder in the user's cache when it is imported: only who asks shall have that.
    from libcachesim import LRU, TraceReader, TraceType

    requests = np.zeros(len(pages), dtype=_REQUEST)
    requests["page"], requests["size"], requests["next"] = pages, 1, _UNKNOWN
    hits = []
    with tempfile.TemporaryDirectory(prefix="coldbench-lru-") as folder:
        path = Path(folder) / "trace"
        requests.tofile(path)
        for size in sizes:
            cache = LRU(size, hashpower=max(10, size.bit_length()))
            reader = TraceReader(str(path), TraceType.ORACLE_GENERAL_TRACE)
            missed, _ = cache.process_trace(reader)
            hits.append(round((1 - missed) * len(pages)))
    return hits


def _smaller_before(values: Ints) -> Ints:
    """Return for each item of a permutation of 0..n-1 how many smaller ones come before it.

    The permutation is sorted bit by bit from the highest; among items that agree in the bits
    above, each with a one is preceded by the zeros that it passes. As it is a permutation, the
    items that agree in the bits above `bit` are at the places from their common prefix on, and
    half of them, rounded up to whole powers of two, are zeros.
    """
    count = len(values)
    current, passed = values.astype(np.int32), np.zeros(count, dtype=np.int32)
    places = np.arange(count, dtype=np.int32)
    for bit in reversed(range((count - 1).bit_length() if count else 0)):
        ones = (current >> bit) & 1
        group = (current >> (bit + 1)) << (bit + 1)
        zeros = np.cumsum(1 - ones, dtype=np.int32) - (1 - ones) - (group >> 1)
        passed += ones * zeros
        target = group + np.where(ones == 1, (1 << bit) + places - group - zeros, zeros)
        ordered, carried = np.empty_like(current), np.empty_like(passed)
        ordered[target], carried[target] = current, passed
        current, passed = ordered, carried
    return passed[values]
