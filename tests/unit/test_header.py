import ctypes
import mmap
import os
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header import (
    Skipped,
    describe,
    find_table,
    read_header,
    read_model,
)
from tests.unit.gguf_files import DATA, gguf, key, number, text

TABLE = "per_layer_token_embd.weight"
F32, Q8_0, UNKNOWN = 0, 8, 200


def error_of(path: Path) -> str:
    with pytest.raises(ColdbenchError) as caught:
        read_model(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return path


def test_tensors_are_found_with_their_absolute_places() -> None:
    model = read_model(DATA / "ok_v3.gguf")
    assert model.architecture == "gemma3n"
    assert model.size == 540_928
    table = model.tensors[TABLE]
    assert (table.type, table.shape, table.rows) == ("Q8_0", (256, 1024), 1024)
    assert (table.offset, table.size) == (262_400, 256 // 32 * 34 * 1024)
    assert table.offset + table.size == model.size
    assert model.notes == ()


def test_version_2_has_the_same_layout(tmp_path: Path) -> None:
    path = written(tmp_path, gguf([], [("a", (8,), F32, 0)], bytes(32), version=2))
    assert read_model(path).tensors["a"].size == 32


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("truncated_data.gguf", "needs 540,928 bytes, has 440,928: incomplete download?"),
        ("truncated_data.gguf", TABLE),
        ("truncated_header.gguf", "cut-off header (150 bytes): incomplete download?"),
        ("huge_count.gguf", "1,099,511,627,776 tensors"),
        ("align0.gguf", "general.alignment 0"),
        ("dup_name.gguf", "two tensors called token_embd.weight"),
        ("empty.gguf", "empty file"),
        ("html_page.gguf", "this is an HTML page; use the raw/resolve link"),
        (
            "lfs_pointer.gguf",
            "this is a Git LFS pointer for a file of 2,063,597,568 bytes; run git lfs pull",
        ),
    ],
)
def test_a_bad_file_is_refused_by_name_and_reason(name: str, words: str) -> None:
    message = error_of(DATA / name)
    assert name in message
    assert words in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04zip", "is not a GGUF file"),
        (b"GG", "cut-off header"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "GGUF version 9"),
        (gguf([number("general.alignment", 48)], [], b""), "general.alignment 48"),
        (gguf([number("k", 1), number("k", 2)], [], b""), "metadata key k twice"),
        (gguf([key("k", 77, b"")], [], b""), "metadata key k of unknown type 77"),
        (gguf([key("k", 9, struct.pack("<IQ", 9, 1))], [], b""), "unknown type 9"),
        (gguf([], [("a", (1, 1, 1, 1, 1), F32, 0)], bytes(32)), "5 dimensions"),
        (gguf([], [("a", (33,), Q8_0, 0)], bytes(64)), "no multiple of Q8_0's block of 32"),
        (gguf([], [("a", (1,), F32, 4)], bytes(32)), "not aligned to 32 bytes"),
        (gguf([], [("a", (16,), F32, 0), ("b", (1,), F32, 32)], bytes(64)), "a and b overlap"),
        (gguf([], [("a", (2**63, 2**63), F32, 0)], bytes(32)), "incomplete download?"),
        (gguf([], [("a", (8,), F32, 2**64 - 32)], bytes(32)), "incomplete download?"),
        (gguf([], [("a", (8,), UNKNOWN, 64)], bytes(32)), "incomplete download?"),
        (gguf([], [("a\nb", (8,), F32, 0)], b""), r"out of bounds is a\nb"),
    ],
)
def test_damage_is_refused_with_its_reason(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in error_of(written(tmp_path, content))


def test_an_absurd_count_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        error_of(DATA / "huge_count.gguf")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["zero_dim.gguf", "zero_dim_2d.gguf"])
def test_zero_length_tensors_count_no_bytes(name: str) -> None:
    sizes = [tensor.size for tensor in read_model(DATA / name).tensors.values()]
    assert 0 in sizes


def test_a_large_vocabulary_is_stepped_over_and_what_follows_is_found(
    big_vocabulary: Path,
) -> None:
    tracemalloc.start()
    try:
        model = read_model(big_vocabulary)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.metadata["tokenizer.ggml.tokens"] == Skipped("string", 150_000)
    assert model.metadata["general.name"] == "toy"
    assert peak < 2**20


def test_strings_longer_than_the_window_are_stepped_over(tmp_path: Path) -> None:
    strings = ["a" * 200_000, "", "b" * 65_528, "c"] * 3
    array = struct.pack("<IQ", 8, len(strings)) + b"".join(map(text, strings))
    path = written(tmp_path, gguf([key("tokens", 9, array), number("after", 7)], [], b""))
    assert read_model(path).metadata == {"tokens": Skipped("string", 12), "after": 7}


def test_short_numeric_arrays_are_kept_and_long_ones_stepped_over(tmp_path: Path) -> None:
    short = struct.pack("<IQ3H", 2, 3, 1, 2, 65535)
    flags = struct.pack("<IQ2?", 7, 2, True, False)
    long = struct.pack("<IQ", 6, 5000) + bytes(4 * 5000)
    keys = [key("short", 9, short), key("flags", 9, flags), key("long", 9, long)]
    assert read_model(written(tmp_path, gguf(keys, [], b""))).metadata == {
        "short": (1, 2, 65535),
        "flags": (True, False),
        "long": Skipped("float32", 5000),
    }


def test_an_unknown_type_reaches_to_the_next_tensor_and_is_flagged(tmp_path: Path) -> None:
    tensors = [("a", (7,), UNKNOWN, 0), ("b", (8,), F32, 96), ("c", (3,), UNKNOWN, 128)]
    model = read_model(written(tmp_path, gguf([], tensors, bytes(128 + 40))))
    a, b, c = model.tensors.values()
    assert (a.type, a.size, a.size_inferred) == ("type 200", 96, True)
    assert (b.size, b.size_inferred) == (32, False)
    assert (c.size, c.size_inferred) == (40, True)
    assert len(model.notes) == 2


def test_bytes_after_the_last_tensor_are_noted() -> None:
    (note,) = read_model(DATA / "resumed_badly.gguf").notes
    assert "4,096 bytes follow the last tensor" in note


def test_padding_after_the_last_tensor_is_no_surplus(tmp_path: Path) -> None:
    path = written(tmp_path, gguf([], [("a", (1,), F32, 0)], bytes(32)))
    assert read_model(path).notes == ()


def test_a_split_model_is_all_its_shards() -> None:
    model = read_model(DATA / "split_ok" / "toy-00001-of-00002.gguf")
    assert [file.path.name for file in model.files] == [
        "toy-00001-of-00002.gguf",
        "toy-00002-of-00002.gguf",
    ]
    assert model.size == 262_400 + 278_720 == sum(file.size for file in model.files)
    assert sorted(tensor.file for tensor in model.tensors.values()) == [0, 1]


def test_another_shard_than_the_first_is_refused_with_the_firsts_name() -> None:
    message = error_of(DATA / "split_ok" / "toy-00002-of-00002.gguf")
    assert "use shard 1: toy-00001-of-00002.gguf" in message


def test_a_missing_shard_is_named() -> None:
    message = error_of(DATA / "split_missing" / "toy-00001-of-00002.gguf")
    assert "shard toy-00002-of-00002.gguf is missing" in message


def test_shards_joined_with_cat_are_refused(tmp_path: Path) -> None:
    shards = sorted((DATA / "split_ok").iterdir())
    path = written(tmp_path, b"".join(shard.read_bytes() for shard in shards))
    assert "do not join shards with cat" in error_of(path)


def test_a_renamed_shard_is_told_its_name(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    shutil.copy(DATA / "split_ok" / "toy-00001-of-00002.gguf", path)
    assert "-00001-of-00002.gguf" in error_of(path)


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    shutil.copy(DATA / "split_ok" / "toy-00001-of-00002.gguf", tmp_path)
    shutil.copy(DATA / "ok_v3.gguf", tmp_path / "toy-00002-of-00002.gguf")
    assert "is not shard 2 of 2" in error_of(tmp_path / "toy-00001-of-00002.gguf")


def test_links_are_followed_to_the_real_files(tmp_path: Path) -> None:
    for number_, shard in enumerate(sorted((DATA / "split_ok").iterdir())):
        blob = tmp_path / "blobs" / f"hash{number_}"
        blob.parent.mkdir(exist_ok=True)
        shutil.copy(shard, blob)
        link = tmp_path / "snapshot" / shard.name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(blob)
    named = tmp_path / "snapshot" / "toy-00001-of-00002.gguf"
    model = read_model(named)
    assert model.path == named
    assert [file.path.name for file in model.files] == ["hash0", "hash1"]


def test_a_dangling_link_names_itself_and_its_target(tmp_path: Path) -> None:
    link = tmp_path / "model.gguf"
    link.symlink_to(tmp_path / "blobs" / "gone")
    assert f"{link}: is a link to {tmp_path}/blobs/gone, which does not exist" in error_of(link)


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in error_of(tmp_path)
    assert "No such file" in error_of(tmp_path / "none.gguf")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "not a regular file" in error_of(fifo)


def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, gguf([], [], b""))
    path.chmod(0)  # for root's stand-in, the folders above are shut as well
    nobody = 65534
    effective = os.geteuid()
    if effective == 0:  # who reads everything
        os.seteuid(nobody)
    try:
        assert "Permission denied" in error_of(path)
    finally:
        os.seteuid(effective)


def test_the_table_is_the_named_tensor_or_the_per_layer_embedding() -> None:
    model = read_model(DATA / "ok_v3.gguf")
    assert find_table(model, None) is model.tensors[TABLE]
    assert find_table(model, "token_embd.weight") is model.tensors["token_embd.weight"]
    assert find_table(read_model(DATA / "zero_dim_2d.gguf"), None) is None
    with pytest.raises(ColdbenchError, match=r"did you mean token_embd\.weight"):
        find_table(model, "token_embed.weight")


def test_the_description_marks_the_table_and_tells_the_notes() -> None:
    shown = describe(read_model(DATA / "resumed_badly.gguf"))
    assert f"{TABLE} <- table" in shown
    assert "256 x 1024" in shown
    assert "278,528" in shown
    assert "note: resumed_badly.gguf: 4,096 bytes follow" in shown


def resident_share(path: Path) -> float:
    """Return the share of a file's pages in the page cache (mincore(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        present = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapped)
        result = libc.mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), present)
        del first
        assert result == 0, os.strerror(ctypes.get_errno())
        return sum(flags & 1 for flags in present) / pages


def test_reading_the_header_leaves_the_data_out_of_the_page_cache(tmp_path: Path) -> None:
    size = 32 * 2**20
    path = written(tmp_path, gguf([], [("a", (size // 4,), F32, 0)], bytes(size)))
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_share(path) > 0:
        pytest.skip("this file system does not let go of its pages")
    read_model(path)
    assert 0 < resident_share(path) < 0.01


SMALL = gguf(
    [
        key("general.architecture", 8, text("toy")),
        key("tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("bc") + text("")),
        key("sizes", 9, struct.pack("<IQ2Q", 10, 2, 1, 2)),
        number("split.count", 1),
        key("general.alignment", 10, struct.pack("<Q", 32)),
    ],
    [("a", (8, 2), F32, 0), ("b", (32,), Q8_0, 64)],
    bytes(64 + 34),
)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, len(SMALL)),
    flips=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=3),
)
def test_a_damaged_header_is_read_or_refused_but_never_crashes(
    tmp_path: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(SMALL)
    for place, value in flips:
        content[place] = value
    path = written(tmp_path, bytes(content[:cut]))
    try:
        header = read_header(path)
        describe(read_model(path))
    except ColdbenchError as error:
        message = str(error)
    else:
        message = ""
        for tensor in header.tensors:
            assert tensor.size == 0 or tensor.offset + tensor.size <= cut
    assert "\n" not in message
