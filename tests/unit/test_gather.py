"""The gather kernel against what numpy makes of the same file and trace."""

from pathlib import Path

import numpy as np
import pytest

from .gather_kernel import CACHESTAT, DIRECT, ENOSYS, PAGE, RANGE_PAGES, Gather, Table, refused

ADVISED = ("random+readahead", "plain+readahead", "process_madvise", "populate")
EXACT = ("random", "random+readahead", "process_madvise", "populate", "pread", "uring")
STRATEGIES = ("plain", "skip", *EXACT, "plain+readahead", *DIRECT)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_pages_and_checksum_are_those_of_numpy(
    gather: Gather, table: Table, indices: np.ndarray, strategy: str
) -> None:
    trace = table.trace(indices)
    result = gather.result(table, trace, "--strategy", strategy, "--batch", 100)
    assert result["checksum"] == table.checksum(indices)
    assert result["strategy"] == strategy
    assert result["gathers"] == len(indices)
    assert result["rows_unique"] == len(np.unique(indices))
    assert result["pages_unique"] == len(table.pages(indices))
    assert result["gather_s"] > 0
    assert result["ns_per_gather"] == pytest.approx(result["gather_s"] * 1e9 / len(indices))
    assert result["ns_per_page"] == pytest.approx(result["gather_s"] * 1e9 / result["pages_unique"])
    assert (result["batch"], result["ahead"], result["depth"]) == (100, 1, 64)
    assert result["hint_errors"] == 0
    assert "hint_error" not in result
    silent = strategy in ("plain", "skip", *DIRECT)
    assert (result["hints"] == 0) == silent


@pytest.mark.parametrize("strategy", [*ADVISED, "pread", "uring", *DIRECT])
def test_ranges_are_the_whole_pages_of_each_batch(
    gather: Gather, table: Table, indices: np.ndarray, strategy: str
) -> None:
    expected = table.ranges(indices, 128)
    assert RANGE_PAGES in expected
    trace = table.trace(indices)
    result = gather.result(table, trace, "--strategy", strategy, "--batch", 128)
    assert result["requested_bytes"] == sum(expected) * PAGE
    if strategy in ADVISED:
        own = 0 if strategy == "plain+readahead" else 1  # MADV_RANDOM
        calls = -(-len(indices) // 128) if strategy == "process_madvise" else len(expected)
        assert result["hint_ranges"] == len(expected) + own
        assert result["hints"] == calls + own


def test_one_call_of_process_madvise_takes_1024_ranges(gather: Gather, table: Table) -> None:
    wide = Table(table.path, row_bytes=16, rows=table.rows * table.row_bytes // 16)
    indices = np.arange(0, wide.rows, 2 * PAGE // 16)
    ranges = len(wide.pages(indices))
    assert ranges > 1024
    result = gather.result(
        wide, wide.trace(indices), "--strategy", "process_madvise", "--batch", 5000
    )
    assert (result["hints"], result["hint_ranges"]) == (3, ranges + 1)


@pytest.mark.parametrize("strategy", ["random+readahead", "pread", "uring", "uring-direct"])
@pytest.mark.parametrize(
    "options",
    ["--batch 1", "--batch 100000 --depth 1", "--batch 7 --ahead 0 --depth 3",
     "--batch 50 --ahead 40 --depth 300"],
)  # fmt: skip
def test_no_batching_changes_what_is_gathered(
    gather: Gather, table: Table, indices: np.ndarray, strategy: str, options: str
) -> None:
    table.evict()
    result = gather.result(table, table.trace(indices), "--strategy", strategy, *options.split())
    assert result["checksum"] == table.checksum(indices)


@pytest.mark.parametrize("strategy", ADVISED)
@pytest.mark.parametrize(
    ("hinters", "batch", "ahead"), [(1, 7, 0), (1, 64, 2), (3, 10, 9), (8, 900, 1)]
)
def test_threads_that_hint_give_the_same_hints(
    gather: Gather,
    table: Table,
    indices: np.ndarray,
    strategy: str,
    hinters: int,
    batch: int,
    ahead: int,
) -> None:
    options = ("--strategy", strategy, "--batch", batch, "--ahead", ahead)
    table.evict()
    alone = gather.result(table, table.trace(indices), *options)
    table.evict()
    result = gather.result(table, table.trace(indices), *options, "--hinters", hinters)
    assert result["hinters"] == hinters
    for same in ("checksum", "hints", "hint_ranges", "requested_bytes", "pages_unique"):
        assert result[same] == alone[same]


def test_indices_of_eight_bytes(gather: Gather, table: Table, indices: np.ndarray) -> None:
    result = gather.result(table, table.trace(indices, index_bytes=8))
    assert result["strategy"] == "plain"
    assert result["checksum"] == table.checksum(indices)


@pytest.mark.parametrize("first", [10, 8999])
@pytest.mark.parametrize("width", [4, 8])
def test_a_mutant_gathers_another_first_row(
    gather: Gather, table: Table, first: int, width: int
) -> None:
    trace = table.trace([first, 5, 6], index_bytes=width)
    moved = gather.result(table, trace, "--mutant")
    assert moved["checksum"] == table.checksum([(first + 1) % table.rows, 5, 6])
    assert moved["checksum"] != gather.result(table, trace)["checksum"]


def test_the_order_counts(gather: Gather, table: Table) -> None:
    there, back = table.trace([1, 2]), table.trace([2, 1])
    assert gather.result(table, there)["checksum"] != gather.result(table, back)["checksum"]


@pytest.mark.parametrize("strategy", EXACT)
def test_cold_only_the_pages_of_the_trace_are_read(
    gather: Gather, table: Table, indices: np.ndarray, strategy: str
) -> None:
    few = indices[:300]
    table.evict()
    result = gather.result(table, table.trace(few), "--strategy", strategy)
    assert result["resident_before_bytes"] == 0
    assert result["resident_bytes"] == len(table.pages(few)) * PAGE
    if strategy == "random":
        assert result["major_faults"] == len(table.pages(few))
    if strategy == "random+readahead":
        assert result["major_faults"] < 10 < result["minor_faults"]


@pytest.mark.parametrize("strategy", EXACT)
def test_the_kernels_own_read_ahead_is_off(gather: Gather, table: Table, strategy: str) -> None:
    page_by_page = np.arange(100) * PAGE // table.row_bytes
    table.evict()
    result = gather.result(
        table, table.trace(page_by_page), "--strategy", strategy, "--batch", 1, "--ahead", 0
    )
    assert result["resident_bytes"] == len(table.pages(page_by_page)) * PAGE


@pytest.mark.parametrize("strategy", DIRECT)
def test_direct_reads_leave_nothing_in_the_cache(
    gather: Gather, table: Table, indices: np.ndarray, strategy: str
) -> None:
    table.evict()
    result = gather.result(table, table.trace(indices), "--strategy", strategy)
    assert (result["resident_before_bytes"], result["resident_bytes"]) == (0, 0)


def test_residency_without_cachestat_is_the_same(
    gather: Gather, table: Table, indices: np.ndarray, shim: Path
) -> None:
    table.evict()
    trace = table.trace(indices[:300])
    result = gather.result(
        table, trace, "--strategy", "random", LD_PRELOAD=str(shim), **refused(CACHESTAT, ENOSYS)
    )
    assert result["resident_before_bytes"] == 0
    assert result["resident_bytes"] == len(table.pages(indices[:300])) * PAGE
