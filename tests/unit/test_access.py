"""The access-pattern report: exact on traces counted by hand and against slow counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldbench.analysis import access
from coldbench.analysis.access import AccessPattern, access_pattern
from coldbench.analysis.reuse import simulated_hits, stack_depths, touches_of
from coldbench.cli import main
from coldbench.common.errors import ColdbenchError
from coldbench.publish.accesstext import plot, report
from coldbench.sources.traces import Table, Trace

PAGE = 4096


def trace(rows: Any, *, row_bytes: int = PAGE, offset: int = 0, per_token: int = 1) -> Trace:
    packed = np.asarray(rows, dtype=np.uint32)
    table = Table(Path("model.gguf"), "table", offset, row_bytes, 1 << 20)
    return Trace(table, packed, per_token, "toy")


def naive_depths(pages: list[int]) -> list[int]:
    stack: list[int] = []
    depths = []
    for page in pages:
        depths.append(stack.index(page) + 1 if page in stack else 0)
        if page in stack:
            stack.remove(page)
        stack.insert(0, page)
    return depths


def demands(found: AccessPattern) -> dict[int, tuple[int | None, int]]:
    return {demand.percent: (demand.lru, demand.hottest) for demand in found.demands}


def test_a_trace_counted_by_hand() -> None:
    # Depths: a0 b0 a2 a1 c0 b3 a3 a1 a1 a1
    found = access_pattern(trace([5, 6, 5, 5, 9, 6, 5, 5, 5, 5]))
    assert (found.gathers, found.rows_unique, found.pages_unique, found.touches) == (10, 3, 3, 10)
    assert found.new_page == pytest.approx(0.3)
    assert found.same_page == pytest.approx(4 / 9)
    # Served: 4 by one page, 5 by two, 7 by three; the hottest page alone serves 7.
    assert demands(found) == {50: (2, 1), 90: (None, 2), 99: (None, 3)}
    assert found.curve.pages.tolist() == [1, 2, 3]
    assert found.curve.lru.tolist() == pytest.approx([0.4, 0.5, 0.7])
    assert found.curve.hottest.tolist() == pytest.approx([0.7, 0.9, 1.0])
    assert [window.pages_so_far for window in found.windows] == [1, 2, 2, 2, 3, 3, 3, 3, 3, 3]
    assert {window.pages for window in found.windows} == {1}


def test_a_row_over_two_pages_is_served_when_both_are_there() -> None:
    # Rows of 3000 bytes from byte 4000 on touch pages 0-1, 1-2, 2-3.
    found = access_pattern(trace([0, 1, 0], row_bytes=3000, offset=4000))
    assert (found.rows_unique, found.pages_unique, found.touches) == (2, 3, 6)
    # Row 0 again: page 0 lies third in the stack (2, 1, 0); page 1 is third after 0 came up.
    assert found.curve.lru.tolist() == pytest.approx([0, 0, 1 / 3])
    assert found.curve.hottest.tolist() == pytest.approx([0, 2 / 3, 1])
    assert found.same_page == 1.0
    assert found.new_page == pytest.approx(2 / 3)


def test_neighbouring_rows_share_pages_whatever_their_order() -> None:
    found = access_pattern(trace([0, 1, 9, 8, 2], row_bytes=2048))
    assert found.same_page == pytest.approx(2 / 4)


def test_heads_are_told_apart() -> None:
    found = access_pattern(trace([0, 100, 1, 100, 0, 101], row_bytes=1024, per_token=2))
    first, second = found.heads
    assert (first.gathers, first.rows_unique, first.pages_unique) == (3, 2, 1)
    assert (first.first_row, first.last_row) == (0, 1)
    assert (second.rows_unique, second.pages_unique) == (2, 1)
    assert (second.first_row, second.last_row) == (100, 101)


def test_a_single_gather() -> None:
    found = access_pattern(trace([3]))
    assert found.same_page is None
    assert demands(found) == {50: (None, 1), 90: (None, 1), 99: (None, 1)}
    assert "n/a (a single gather)" in report(found)


@pytest.mark.parametrize("seed", range(12))
def test_depths_are_those_of_a_naive_stack(seed: int) -> None:
    random = np.random.RandomState(seed)
    pages = random.randint(0, random.randint(1, 400), random.randint(1, 3000))
    touched = touches_of(pages.astype(np.int64) + 7)
    assert stack_depths(touched.previous).tolist() == naive_depths(pages.tolist())
    assert touched.counts.tolist() == np.unique(pages, return_counts=True)[1].tolist()


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 4096, 4097])
def test_depths_where_every_page_comes_twice(count: int) -> None:
    pages = np.concatenate((np.arange(count), np.arange(count)[::-1]))
    depths = stack_depths(touches_of(pages).previous)
    assert depths.tolist() == [0] * count + list(range(1, count + 1))


@pytest.mark.parametrize(("row_bytes", "exponent"), [(PAGE, 1.0), (68, 1.1), (9000, 1.2)])
def test_sizes_are_those_of_a_naive_count_on_100_000_gathers(
    row_bytes: int, exponent: float
) -> None:
    random = np.random.RandomState(1)
    weights = np.arange(1, 501) ** -exponent
    rows = random.choice(random.permutation(500), 100_000, p=weights / weights.sum())
    found = access_pattern(trace(rows, row_bytes=row_bytes))
    worst = []
    stack: list[int] = []
    for row in rows.tolist():
        depth = 0
        for page in range(row * row_bytes // PAGE, ((row + 1) * row_bytes - 1) // PAGE + 1):
            if page in stack:
                at = stack.index(page)
                depth = max(depth, at + 1)
                stack.pop(at)
            else:
                depth = 2**40
            stack.insert(0, page)
        worst.append(depth)
    worst.sort()
    for percent, (lru, _) in demands(found).items():
        naive = worst[100_000 * percent // 100 - 1]
        assert lru == (None if naive == 2**40 else naive)
    assert demands(found)[99][0] is not None, "few enough rows that the first touches do not count"


def test_libcachesim_agrees_at_every_size() -> None:
    random = np.random.RandomState(2)
    touched = touches_of(random.zipf(1.3, 20_000) % 500)
    depths = stack_depths(touched.previous)
    sizes = [1, 2, 3, 10, 100, 499, 10_000]
    counted = [int(((depths > 0) & (depths <= size)).sum()) for size in sizes]
    assert simulated_hits(touched.page, sizes) == counted
    assert simulated_hits(touched.page, []) == []


def test_a_miscount_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "simulated_hits", lambda pages, sizes: [0] * len(sizes))
    with pytest.raises(ColdbenchError, match="simulated by libcachesim"):
        access_pattern(trace([1, 1, 1, 1]))


def test_windows_cover_a_long_trace() -> None:
    found = access_pattern(trace(np.arange(1000) % 300))
    assert len(found.windows) == 20
    assert found.windows[-1].gathers == 1000
    assert [window.pages for window in found.windows] == [50] * 20
    assert found.windows[-1].pages_so_far == 300


def test_what_is_out_of_reach_is_told() -> None:
    said = report(access_pattern(trace([5, 6, 5, 5, 9, 6, 5, 5, 5, 5])))
    assert "n/a (at most 70.00%)" in said
    assert "0.01 MiB (2 pages)" in said
    assert "44.4444%" in said


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_plots(tmp_path: Path, name: str, begins: bytes) -> None:
    found = access_pattern(trace(np.arange(1000) % 300, per_token=2))
    plot(found, tmp_path / name)
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(begins)
    plot(found, tmp_path / name)
    assert (tmp_path / name).read_bytes() == drawn
    with pytest.raises(ColdbenchError, match="cannot be written"):
        plot(found, tmp_path / "none" / ("x" * 300 + name[1:]))


class TestCommand:
    def raw(self, folder: Path) -> Path:
        path = folder / "raw"
        path.write_bytes(bytes(10 * PAGE))
        return path

    def test_reports_draws_and_saves(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "ids").write_text("1 2 1 9")
        names = {"--plot": tmp_path / "a.png", "--save": tmp_path / "feed"}
        more = [str(word) for pair in names.items() for word in pair]
        ids = ["--tokens-file", str(tmp_path / "ids"), "--raw", f"{PAGE}:0"]
        main(["trace", str(self.raw(tmp_path)), *ids, *more])
        said = capsys.readouterr().out
        assert "unique rows                      3, 30.00% of all" in said
        assert (tmp_path / "feed").read_bytes().startswith(b"CBTRACE1")
        assert (tmp_path / "a.png").exists()

    @pytest.mark.parametrize(
        ("more", "why"),
        [
            (["--zipf", "1", "--raw", "4096"], "write ROW_BYTES:OFFSET"),
            (["--zipf", "1", "--raw", "0:0"], "no table"),
            (["--zipf", "nan", "--raw", "64:0"], "exponent nan"),
            (["--zipf", "1", "--raw", "64:0", "--plot", "a.pdf"], "a plot is .png or .svg"),
            (["--text", "a"], "--text and --tokenizer go together"),
            (["--raw", "64:0"], "one of the arguments"),
            (["--zipf", "1"], "not a GGUF file"),
        ],
    )
    def test_refuses_in_a_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], why: str
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["trace", str(self.raw(tmp_path)), *more])
        assert caught.value.code == 2
        assert why in capsys.readouterr().err.splitlines()[-1]
