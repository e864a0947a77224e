"""Token streams, the rows they gather, and the files that feed the kernels."""

import ctypes
import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header import read_model
from coldbench.sources.traces import (
    Table,
    Tokens,
    batched_bench_tokens,
    make_trace,
    prepare_trace,
    rows_of_tokens,
    table_of,
    write_feed,
)
from coldbench.sources.traces.feed import count_pages, distinct, pages_of
from tests.unit.gguf_files import TABLE, gguf, heading, key, number, record

F32 = 0
VOCABULARY = 50
MULTIPLIERS = (0xFFFF_FFFF_FFFF_FFFB, 0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03)
SIZES, OFFSETS = (31, 29, 37, 23), (0, 40, 80, 117)
ROWS, END = 140, 2


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed here: do not wait for whoever measures on this machine."""
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "machine.lock"))


def longs(name: str, values: Sequence[int]) -> bytes:
    return key(name, 9, struct.pack(f"<IQ{len(values)}Q", 10, len(values), *values))


def ple(**other: Any) -> list[bytes]:
    values = {
        "ngram_size": 3,
        "heads_per_ngram": 2,
        "eos_token_id": END,
        "layer_multipliers": MULTIPLIERS,
        "head_vocab_sizes": SIZES,
        "head_offsets": OFFSETS,
        **other,
    }
    return [
        (number if isinstance(value, int) else longs)(f"qwen4exp.ple.{name}", value)
        for name, value in values.items()
    ]


def written(path: Path, keys: list[bytes], rows: int, values: int = 4) -> Path:
    path.write_bytes(gguf(keys, [(TABLE, (values, rows), F32, 0)], bytes(4 * values * rows)))
    return path


@pytest.fixture
def gemma4(tmp_path: Path) -> Path:
    return written(tmp_path / "gemma4.gguf", heading("gemma4"), VOCABULARY)


@pytest.fixture
def qwen4exp(tmp_path: Path) -> Path:
    return written(tmp_path / "qwen4exp.gguf", heading("qwen4exp") + ple(), ROWS)


def refused(*arguments: Any, **keys: Any) -> str:
    with pytest.raises(ColdbenchError) as caught:
        make_trace(*arguments, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def slow_rows(ids: list[int], starts: Sequence[int]) -> list[int]:
    """Return the rows of the formula, written down token by token."""
    found = []
    for position, token in enumerate(ids):
        begin = max(start for start in starts if start <= position)
        window = [token]
        for back in (1, 2):
            at = position - back
            before = ids[at] if at >= begin else END
            window.append(END if window[1:] and END in window[1:] else before)
        for n in (2, 3):
            mixed = 0
            for one, multiplier in zip(window[:n], MULTIPLIERS, strict=False):
                mixed ^= one * multiplier % 2**64
            for head in (2 * (n - 2), 2 * (n - 2) + 1):
                found.append(mixed % SIZES[head] + OFFSETS[head])
    return found


@pytest.mark.parametrize(
    ("ids", "starts"),
    [
        ([7], (0,)),
        ([7, 8], (0,)),
        ([END, 7, 8, 9], (0,)),
        ([7, END, END, 8, 9, 10, END], (0,)),
        ([7, 8, 9, 10, 11, 12], (0, 3)),
        ([7, 8, 9, 10, 11], (0, 1, 4)),
        (np.random.RandomState(5).randint(0, VOCABULARY, 500).tolist(), (0, 16, 300)),
        (np.random.RandomState(6).randint(0, 4, 500).tolist(), (0,)),
    ],
)
def test_ngram_rows_are_those_of_the_formula(
    qwen4exp: Path, ids: list[int], starts: tuple[int, ...]
) -> None:
    model = read_model(qwen4exp)
    found = rows_of_tokens(model, table_of(model), Tokens(np.array(ids), starts))
    assert found.rows.tolist() == slow_rows(ids, starts)
    assert found.per_token == 4
    assert found.kind == "qwen4exp"


def test_a_stream_that_gathers_more_than_memory_holds(qwen4exp: Path) -> None:
    model = read_model(qwen4exp)
    many = np.broadcast_to(np.int64(7), (1 << 27,))
    with pytest.raises(ColdbenchError, match="tokens gather 4 rows each"):
        rows_of_tokens(model, table_of(model), Tokens(many))


def test_an_ngram_row_by_hand(qwen4exp: Path) -> None:
    model = read_model(qwen4exp)
    found = rows_of_tokens(model, table_of(model), Tokens(np.array([49])))
    pair = (49 * MULTIPLIERS[0] % 2**64) ^ (END * MULTIPLIERS[1] % 2**64)
    triple = pair ^ (END * MULTIPLIERS[2] % 2**64)
    assert found.rows.tolist() == [pair % 31, pair % 29 + 40, triple % 37 + 80, triple % 23 + 117]


def test_a_row_is_the_token_where_the_table_has_one_for_each(gemma4: Path) -> None:
    model = read_model(gemma4)
    found = rows_of_tokens(model, table_of(model), Tokens(np.array([3, 0, 49])))
    assert found.rows.tolist() == [3, 0, 49]
    assert (found.table.rows, found.table.row_bytes, found.per_token) == (50, 16, 1)
    assert found.table.file == gemma4


def test_the_tokens_of_batched_bench_are_those_of_an_unseeded_rand() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        pytest.skip("another C library has another rand()")
    libc.srand(1)  # what a process begins with
    wanted = [libc.rand() % 4096 for _ in range(16 + 400)]
    found = batched_bench_tokens(4096, 300, 100)
    assert found.ids.tolist() == wanted
    assert found.starts == (0, 16)


class TestZipf:
    def test_is_as_frequent_as_the_law_says(self, gemma4: Path) -> None:
        found = make_trace(gemma4, {"zipf": {"exponent": 1.0, "count": 100_000, "seed": 1}})
        counts = np.sort(np.bincount(found.rows, minlength=VOCABULARY))[::-1] / 100_000
        law = 1 / np.arange(1, VOCABULARY + 1)
        assert np.abs(counts - law / law.sum()).max() < 0.005

    def test_is_the_same_for_the_same_seed_on_every_machine(self, gemma4: Path) -> None:
        draw = [
            make_trace(gemma4, {"zipf": {"exponent": 1.1, "count": 1000, "seed": seed}}).rows
            for seed in (1, 1, 2)
        ]
        assert (draw[0] == draw[1]).all()
        assert (draw[0] != draw[2]).any()
        assert draw[0][:8].tolist() == [34, 27, 28, 49, 28, 28, 28, 49]

    @pytest.mark.parametrize(
        ("keys", "why"),
        [
            ({"exponent": float("nan")}, "exponent nan"),
            ({"exponent": -1.0}, "exponent -1.0"),
            ({"exponent": float("inf")}, "exponent inf"),
            ({"count": 0}, "count 0"),
            ({"count": 2**40}, "count 1,099,511,627,776"),
            ({"seed": -1}, "seed -1"),
        ],
    )
    def test_refuses_what_is_no_distribution(
        self, gemma4: Path, keys: dict[str, Any], why: str
    ) -> None:
        assert why in refused(gemma4, {"zipf": {"exponent": 1.0, "count": 9, "seed": 1} | keys})


class TestRecorded:
    @pytest.mark.parametrize("words", ["3 0\n49\t7 ", "[3, 0, 49, 7]\n", "03 0 49 7"])
    def test_text_is_read(self, gemma4: Path, tmp_path: Path, words: str) -> None:
        (tmp_path / "ids").write_text(words)
        assert make_trace(gemma4, {"recorded": tmp_path / "ids"}).rows.tolist() == [3, 0, 49, 7]

    @pytest.mark.parametrize("kind", ["<i4", ">i8", "u1", "<u8"])
    def test_an_array_is_read(self, gemma4: Path, tmp_path: Path, kind: str) -> None:
        np.save(tmp_path / "ids.npy", np.array([3, 0, 49, 7], dtype=kind))
        found = make_trace(gemma4, {"recorded": str(tmp_path / "ids.npy")})
        assert found.rows.tolist() == [3, 0, 49, 7]

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "has 0 token ids"),
            (b" \n ", "has 0 token ids"),
            (b"1 2 x3 4", "b'x3' is no token id"),
            (b"1 -2", "b'-2' is no token id"),
            (b"1 2.5", "b'2.5' is no token id"),
            (b"1_0", "b'1_0' is no token id"),
            (b"1 2\x003", "b'2\\x003' is no token id"),
            ("1 ٣".encode(), "is no token id"),
            (b"1 50 3 60", "token 2 is 50, outside the vocabulary of 50 (2 such tokens)"),
            (b"1 " + b"9" * 400, "is no token id: too large"),
            (b"\x93NUMPY", "is no array of token ids"),
            (b"\x93NUMPY\x01\x00\x10\x00{'descr': '<i8'}", "is no array of token ids"),
            (
                b"\x93NUMPY\x01\x00v\x00"
                + b"{'descr': '<i8', 'fortran_order': False, 'shape': (999999999999,), }".ljust(117)
                + b"\n",
                "is no array of token ids",
            ),
        ],
    )
    def test_refuses_what_is_no_list_of_ids(
        self, gemma4: Path, tmp_path: Path, data: bytes, why: str
    ) -> None:
        (tmp_path / "ids").write_bytes(data)
        assert why in refused(gemma4, {"recorded": tmp_path / "ids"})

    @pytest.mark.parametrize(
        ("array", "why"),
        [
            (np.array([1.0]), "holds float64 in 1 dimensions"),
            (np.array([[1]]), "holds int64 in 2 dimensions"),
            (np.array([], dtype="i4"), "has 0 token ids"),
            (np.array([-1]), "token 1 is -1, outside"),
            (np.array([2**63 + 5], dtype="u8"), "which is no token id"),
        ],
    )
    def test_refuses_arrays_of_something_else(
        self, gemma4: Path, tmp_path: Path, array: Any, why: str
    ) -> None:
        np.save(tmp_path / "ids.npy", array)
        assert why in refused(gemma4, {"recorded": tmp_path / "ids.npy"})

    def test_never_unpickles(self, gemma4: Path, tmp_path: Path) -> None:
        np.save(tmp_path / "ids.npy", np.array([print], dtype=object), allow_pickle=True)
        assert "is no array" in refused(gemma4, {"recorded": tmp_path / "ids.npy"})

    def test_a_missing_file_and_a_folder(self, gemma4: Path, tmp_path: Path) -> None:
        assert "cannot be read" in refused(gemma4, {"recorded": tmp_path / "none"})
        assert "cannot be read" in refused(gemma4, {"recorded": tmp_path})


class TestTables:
    def test_a_raw_file(self, tmp_path: Path) -> None:
        raw = tmp_path / "raw"
        raw.write_bytes(bytes(1000))
        (tmp_path / "ids").write_text("0 8 3")
        found = make_trace(raw, {"recorded": tmp_path / "ids"}, raw=(100, 50))
        assert (found.table.rows, found.table.offset, found.table.row_bytes) == (9, 50, 100)
        assert found.rows.tolist() == [0, 8, 3]
        (tmp_path / "ids").write_text("0 9 3")
        assert "token 2 is 9" in refused(raw, {"recorded": tmp_path / "ids"}, raw=(100, 50))
        zipf = {"zipf": {"exponent": 1.0, "count": 5, "seed": 1}}
        assert "not one row of 100" in refused(raw, zipf, raw=(100, 901))
        assert "no table" in refused(raw, zipf, raw=(0, 0))
        assert "regular file" in refused(tmp_path, zipf, raw=(1, 0))
        assert "a raw file has none" in refused(raw, {"text": raw, "tokenizer": raw}, raw=(1, 0))

    @pytest.mark.parametrize(
        ("keys", "rows", "why"),
        [
            (heading("gemma4"), 51, "which of the 51 rows"),
            (heading("gemma4", 0), 50, "has no vocabulary"),
            (heading("qwen4exp"), ROWS, "no usable qwen4exp.ple.ngram_size"),
            (heading("qwen4exp") + ple(ngram_size=1), ROWS, "1-grams"),
            (heading("qwen4exp") + ple(heads_per_ngram=0), ROWS, "0 heads"),
            (
                heading("qwen4exp") + ple(heads_per_ngram=3),
                ROWS,
                "head_vocab_sizes of 6",
            ),
            (
                heading("qwen4exp") + ple(layer_multipliers=(1, 2)),
                ROWS,
                "multipliers of 3",
            ),
            (heading("qwen4exp") + ple(), ROWS - 1, "does not fit the table of 139"),
            (
                heading("qwen4exp") + ple(head_vocab_sizes=(31, 29, 0, 23)),
                ROWS,
                "a head of 0",
            ),
        ],
    )
    def test_headers_that_do_not_fit(
        self, tmp_path: Path, keys: list[bytes], rows: int, why: str
    ) -> None:
        model = written(tmp_path / "model.gguf", keys, rows)
        assert why in refused(model, {"zipf": {"exponent": 1.0, "count": 5, "seed": 1}})

    def test_no_table_and_no_rows(self, tmp_path: Path) -> None:
        zipf = {"zipf": {"exponent": 1.0, "count": 5, "seed": 1}}
        without = tmp_path / "without.gguf"
        without.write_bytes(gguf(heading("llama"), [("a", (4, 50), F32, 0)], bytes(800)))
        assert f"has no {TABLE}" in refused(without, zipf)
        assert make_trace(without, zipf, tensor="a").table.name == "a"
        empty = written(tmp_path / "empty.gguf", heading("gemma4"), 0)
        assert "has no rows" in refused(empty, zipf)


class TestFeed:
    def test_its_bytes(self, gemma4: Path, tmp_path: Path) -> None:
        (tmp_path / "ids").write_text("1 0 49")
        trace = make_trace(gemma4, {"recorded": tmp_path / "ids"})
        write_feed(trace, tmp_path / "feed")
        data = (tmp_path / "feed").read_bytes()
        offset = gemma4.stat().st_size - 16 * VOCABULARY
        assert data[:8] == b"CBTRACE1"
        assert struct.unpack("<QQQQII", data[8:48]) == (offset, 16, VOCABULARY, 3, 4, 1)
        assert data[48:304] == b"gemma4.gguf".ljust(256, b"\0")
        assert data[304:] == struct.pack("<III", 1, 0, 49)

    def test_large_tables_have_indices_of_eight_bytes(self, tmp_path: Path) -> None:
        sparse = tmp_path / "sparse"
        sparse.touch()
        os.truncate(sparse, 2**32 + 1)
        np.save(tmp_path / "ids.npy", np.array([2**32, 1]))
        trace = make_trace(sparse, {"recorded": tmp_path / "ids.npy"}, raw=(1, 0))
        write_feed(trace, tmp_path / "feed")
        data = (tmp_path / "feed").read_bytes()
        assert struct.unpack("<QII", data[32:48]) == (2, 8, 1)
        assert struct.unpack("<QQ", data[304:]) == (2**32, 1)

    def test_is_kept_and_made_again_when_anything_changes(
        self, qwen4exp: Path, tmp_path: Path
    ) -> None:
        ids, cache = tmp_path / "ids", tmp_path / "cache"
        ids.write_text("7 8 9 7 8 9")
        model = record(qwen4exp)
        first = prepare_trace(model, {"recorded": str(ids)}, cache)
        path = Path(first["path"])
        assert path.is_relative_to(cache / "feeds")
        assert first["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert first["content"] == first["sha256"]
        assert first["bytes"] == path.stat().st_size == 304 + 4 * 24
        assert (first["kind"], first["gathers"], first["per_token"]) == ("qwen4exp", 24, 4)
        assert first["table"]["file"] == "qwen4exp.gguf"
        assert first["rows_unique"] == len(set(slow_rows([7, 8, 9, 7, 8, 9], (0,))))
        assert first["pages_unique"] == 1
        status = path.stat()
        assert prepare_trace(model, {"recorded": str(ids)}, cache) == first
        assert path.stat().st_mtime_ns == status.st_mtime_ns
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        assert prepare_trace(model, {"recorded": str(ids)}, cache) == first
        assert hashlib.sha256(path.read_bytes()).hexdigest() == first["sha256"]
        ids.write_text("7 8 9 7 8 8")
        other = prepare_trace(model, {"recorded": str(ids)}, cache)
        assert other["path"] != first["path"]
        raw = prepare_trace(model, {"recorded": str(ids)}, cache, raw=(8, 0))
        assert raw["rows_unique"] == 3
        assert raw["kind"] == "raw"

    def test_a_stream_that_is_not_there(self, qwen4exp: Path, tmp_path: Path) -> None:
        for name in (tmp_path / "none", tmp_path):
            with pytest.raises(ColdbenchError):
                prepare_trace(record(qwen4exp), {"recorded": name}, tmp_path / "cache")

    def test_pages_of_rows(self) -> None:
        table = make_table(offset=4000, row_bytes=3000, rows=100)
        rows = np.array([0, 1, 2, 50], dtype=np.uint32)
        first, last = pages_of(table, rows)
        assert first.tolist() == [0, 1, 2, 37]
        assert last.tolist() == [1, 2, 3, 38]
        assert count_pages(table, rows) == 6
        assert distinct(np.array([3, 1, 3, 2, 1])).tolist() == [1, 2, 3]


def make_table(**keys: int) -> Table:
    return Table(file=Path("file"), name="table", **keys)
