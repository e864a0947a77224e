import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header import TABLE_TENSOR, find_table, read_model
from coldbench.sources.standin import size_of, write_standin
from coldbench.sources.standin.blocks import CHUNK_BYTES, TYPES, random_data, row_bytes
from coldbench.sources.standin.qwen4exp import TABLE_HEADS, head_sizes
from coldbench.sources.standin.vocabulary import MAXIMUM, RESERVED, tokens
from coldbench.study.models import StandIn

GEMMA4: dict[str, Any] = {"architecture": "gemma4", "body": "12MiB", "table": {"rows": 1024}}
QWEN4EXP: dict[str, Any] = {"architecture": "qwen4exp", "body": "32MiB", "table": {"rows": 4096}}
LLAMA: dict[str, Any] = {"architecture": "llama", "body": "16MiB"}


def standin(keys: dict[str, Any], **changes: Any) -> StandIn:
    return StandIn.model_validate(keys | changes)


@pytest.mark.parametrize("keys", [GEMMA4, QWEN4EXP, LLAMA], ids=lambda keys: keys["architecture"])
def test_the_size_is_known_beforehand_and_the_hash_is_the_files(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    path = tmp_path / "m.gguf"
    spec = standin(keys)
    sha256 = write_standin(spec, path)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    model = read_model(path)
    assert model.size == path.stat().st_size == size_of(spec)
    assert model.architecture == keys["architecture"]
    assert model.notes == ()
    table = find_table(model, None)
    body = model.size - (0 if table is None else table.size)
    assert body == pytest.approx(spec.body, rel=0.25)
    if spec.table is not None:
        assert table is not None
        assert (table.rows, table.type) == (spec.table.rows, "Q8_0")


# These digests hold on every machine and NumPy 2: a change of one goes with a new WRITER_VERSION.
@pytest.mark.parametrize(
    ("keys", "sha256"),
    [
        (GEMMA4, "941ae2edeeda7268a5cf071f0550d277ca8957f4701a75c0804b07b0a7da3a06"),
        (QWEN4EXP, "204e9dd79606b3e2af337964821d7f8bca52c52da5f84381bb44854e78444832"),
        (LLAMA, "5103790ecd63bdf365c5fe4c067de348123f94351452eef62a84637c3af96e2c"),
    ],
)
def test_the_same_spec_gives_the_same_bytes_and_another_seed_others(
    tmp_path: Path, keys: dict[str, Any], sha256: str
) -> None:
    assert write_standin(standin(keys), tmp_path / "one.gguf") == sha256
    assert write_standin(standin(keys, seed=2), tmp_path / "two.gguf") != sha256


def test_every_type_has_the_same_bits_everywhere() -> None:
    digest = hashlib.sha256()
    for kind in TYPES:
        for chunk in random_data(kind, 1 << 14, 0.02, 512, "seed"):
            digest.update(chunk)
    assert digest.hexdigest() == "27e46161c5b67bd8a744684dc370164eaee34cce2b6579b7b44c8a76c6ab3311"


def test_the_reference_reader_reads_the_same_header(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_standin(standin(QWEN4EXP), path)
    ours = read_model(path)
    theirs = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert ours.tensors.keys() == theirs.keys()
    for name, tensor in ours.tensors.items():
        other = theirs[name]
        assert (tensor.offset, tensor.size) == (other.data_offset, other.n_bytes)
        assert tensor.shape == tuple(map(int, other.shape))
        assert tensor.type == other.tensor_type.name


@pytest.mark.parametrize("kind", TYPES)
def test_random_values_are_finite_and_spread_as_asked(kind: str) -> None:
    count, zeros = 1 << 18, 1024
    chunks = list(random_data(kind, count, 0.02, zeros, "seed"))
    raw = np.concatenate([np.frombuffer(chunk, np.uint8) for chunk in chunks])
    assert raw.size == row_bytes(kind, count)
    values = dequantize(raw, GGMLQuantizationType[kind]).ravel().astype(np.float64)
    assert np.isfinite(values).all()
    assert not values[:zeros].any()
    assert values[zeros:].std() == pytest.approx(0.02, rel=0.03)
    assert abs(values[zeros:].mean()) < 0.0025


def test_large_tensors_come_in_chunks_that_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def data() -> list[bytes]:
        return [bytes(chunk) for chunk in random_data("Q4_K", 256 * 1000, 1.0, 256 * 300, "seed")]

    (whole,) = data()
    monkeypatch.setattr("coldbench.sources.standin.blocks.CHUNK_BYTES", 144 * 64)
    parts = data()
    assert len(parts) > 10
    assert b"".join(parts) == whole


def test_memory_does_not_grow_with_the_table() -> None:
    def peak(values: int) -> int:
        tracemalloc.start()
        try:
            for _ in random_data("Q8_0", values, 1.0, 0, "seed"):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1 << 27) < 4 * CHUNK_BYTES


def test_a_table_of_tens_of_gigabytes_can_be_planned() -> None:
    rows = 32 * 2**30 // row_bytes("Q8_0", 64)
    spec = standin(QWEN4EXP, body="120MiB", table={"rows": rows, "type": "Q8_0"})
    assert size_of(spec) == pytest.approx(32 * 2**30 + 120 * 2**20, rel=0.01)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (GEMMA4 | {"table": {"rows": 1024, "type": "IQ1_S"}}, "one of F32, F16, BF16, Q4_0"),
        (QWEN4EXP | {"table": {"rows": 4096, "type": "q8_0"}}, "one of F32, F16, BF16, Q4_0"),
        (GEMMA4 | {"table": {"rows": 100}}, "table rows 100"),
        (GEMMA4 | {"table": {"rows": MAXIMUM + 1}}, "512 to "),
        (QWEN4EXP | {"table": {"rows": 2**31}}, "2,147,483,648"),
        (GEMMA4 | {"table": {"rows": 65536}}, "a body of 12 MiB cannot be met"),
        (LLAMA | {"body": "900GiB"}, "it is at most"),
    ],
)
def test_a_spec_that_cannot_be_met_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ColdbenchError) as caught:
        size_of(standin(keys))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_token_is_another_text_and_all_but_the_first_print() -> None:
    vocabulary = tokens(MAXIMUM)
    assert len(set(vocabulary)) == len(vocabulary) == MAXIMUM
    assert all(len(text) == 1 for text in vocabulary[RESERVED:])
    assert "".join(vocabulary[RESERVED:100_000]).isprintable()


def test_tokens_that_must_not_be_generated_have_no_output_weights(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_standin(standin(LLAMA), path)
    (output,) = (t for t in GGUFReader(path).tensors if t.name == "output.weight")
    rows = dequantize(output.data, output.tensor_type)
    assert not rows[:RESERVED].any()
    assert rows[RESERVED:].any(axis=1).all()


def test_hash_heads_have_different_prime_sizes_within_the_table() -> None:
    rows = 1_000_000
    sizes = head_sizes(rows)
    assert len(set(sizes)) == TABLE_HEADS
    assert max(sizes) <= rows // TABLE_HEADS
    assert min(sizes) > 0.99 * rows / TABLE_HEADS
    assert all(pow(2, size - 1, size) == 1 for size in sizes)


def test_the_heads_ranges_cover_the_table_without_overlap(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_standin(standin(QWEN4EXP), path)
    model = read_model(path)
    offsets = model.metadata["qwen4exp.ple.head_offsets"]
    sizes = model.metadata["qwen4exp.ple.head_vocab_sizes"]
    assert isinstance(offsets, tuple)
    assert isinstance(sizes, tuple)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(end <= after for end, after in zip(ends, offsets[1:], strict=False))
    assert 0.9 * 4096 < ends[-1] <= model.tensors[TABLE_TENSOR].rows


def test_a_sparse_table_is_a_hole(tmp_path: Path) -> None:
    rows = 1_000_003
    spec = standin(QWEN4EXP, table={"rows": rows, "sparse": "true"})
    path = tmp_path / "toy.gguf"
    digest = write_standin(spec, path)
    size = path.stat().st_size
    assert (size_of(spec), digest) == (size, hashlib.sha256(path.read_bytes()).hexdigest())
    table = read_model(path).tensors[TABLE_TENSOR]
    assert table.size == rows * row_bytes("Q8_0", 64)
    body = size - table.size
    assert body <= 512 * path.stat().st_blocks < body + (3 << 20)
    with path.open("rb") as stream:
        stream.seek(table.offset)
        assert stream.read(table.size) == bytes(table.size)
