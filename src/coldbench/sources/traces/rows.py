"""Which rows of a table a token stream gathers, from the model's header alone."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header import TABLE_TENSOR, ModelMap, Tensor, find_table, read_model
from coldbench.sources.traces.tokens import (
    Tokens,
    recorded_tokens,
    text_tokens,
    vocabulary_of,
    zipf_tokens,
)

MAX_GATHERS = 1 << 28

Rows = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Table:
    """`rows` rows of `row_bytes` bytes each from byte `offset` of `file` on.

    `file` is named as it lies beside the model, `name` is the tensor's name.
    """

    file: Path
    name: str
    offset: int
    row_bytes: int
    rows: int


@dataclass(frozen=True)
class Trace:
    """The rows of a table in the order in which they are gathered, `per_token` of them a token."""

    table: Table
    rows: Rows
    per_token: int
    kind: str


def make_trace(
    path: Path,
    stream: Mapping[str, Any],
    *,
    tensor: str | None = None,
    raw: tuple[int, int] | None = None,
) -> Trace:
    """Return the trace of a token stream over a model's table.

    `stream` is one of `{"zipf": {"exponent": S, "count": TOKENS, "seed": K}}`,
    `{"recorded": FILE}` and `{"text": FILE, "tokenizer": PROGRAM}`; `tensor` names another table
    than the per-layer embedding. With `raw`, (bytes of a row, offset), the table is the rest of a
    file of any format, and what the stream says are row numbers (a text has none).

    Raises ColdbenchError where model, table or stream are not what they have to be.
    """
    if raw is not None:
        table = raw_table(path, *raw)
        return Trace(table, _packed(_tokens(stream, table.rows, None).ids, table), 1, "raw")
    model = read_model(path)
    table = table_of(model, tensor)
    return rows_of_tokens(model, table, _tokens(stream, vocabulary_of(model), model))


def table_of(model: ModelMap, tensor: str | None = None) -> Table:
    """Return where a model's table lies; raises ColdbenchError where it has none to gather from."""
    found = find_table(model, tensor)
    if found is None:
        raise ColdbenchError(
            f"{model.path}: has no {TABLE_TENSOR}, so no table that is read row by row; "
            "--raw takes a plain file"
        )
    if not found.rows or not found.size:
        raise ColdbenchError(f"{model.path}: tensor {found.name} has no rows")
    if found.size_inferred:
        raise ColdbenchError(
            f"{model.path}: tensor {found.name} has {found.type}, whose row size is unknown here"
        )
    return Table(
        beside(model, found), found.name, found.offset, found.size // found.rows, found.rows
    )


def raw_table(path: Path, row_bytes: int, offset: int) -> Table:
    """Return a file from `offset` on as a table; raises ColdbenchError if not a row is in it."""
    if row_bytes < 1 or offset < 0:
        raise ColdbenchError(f"{path}: rows of {row_bytes:,} bytes from {offset:,} on: no table")
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be read: {error.strerror}") from error
    if size is None:
        raise ColdbenchError(f"{path}: is not a regular file, or missing")
    rows = max(0, size - offset) // row_bytes
    if not rows:
        raise ColdbenchError(
            f"{path}: has {size:,} bytes, not one row of {row_bytes:,} from byte {offset:,} on"
        )
    return Table(Path(os.path.abspath(path)), "raw", offset, row_bytes, rows)


def beside(model: ModelMap, tensor: Tensor) -> Path:
    """Return the tensor's file by its name in the folder of the name that the model goes by.

    The kernels look for shards there, as engines do; behind links the files may have other names.
    Raises ColdbenchError where the shard is not there.
    """
    real = model.files[tensor.file].path
    if tensor.file == 0:
        return model.path
    shards = f"-of-{len(model.files):05d}.gguf"
    stem = model.path.name.removesuffix(f"-00001{shards}")
    named = model.path.with_name(f"{stem}-{tensor.file + 1:05d}{shards}")
    if os.path.realpath(named) != str(real):
        raise ColdbenchError(
            f"{model.path}: its shard {real.name} is not in this folder; name the model by its "
            "first shard's own name"
        )
    return named


def rows_of_tokens(model: ModelMap, table: Table, tokens: Tokens) -> Trace:
    """Return the rows that a model gathers from its table for `tokens`, by its architecture.

    qwen4exp hashes n-grams (llama.cpp, src/models/qwen4exp.cpp); any other table with one row for
    each token of the vocabulary is indexed by the token, as gemma4's is. Raises ColdbenchError
    for a table of which neither is known.
    """
    if model.architecture == "qwen4exp" and table.name == TABLE_TENSOR:
        constants = _Hash.of(model, table)
        heads = len(constants.sizes)
        if len(tokens.ids) * heads > MAX_GATHERS:
            raise ColdbenchError(
                f"{len(tokens.ids):,} tokens gather {heads:,} rows each; up to {MAX_GATHERS:,} "
                "rows will do"
            )
        return Trace(table, _packed(_ngram_rows(constants, tokens), table), heads, "qwen4exp")
    vocabulary = vocabulary_of(model)
    if table.rows != vocabulary:
        raise ColdbenchError(
            f"{model.path}: which of the {table.rows:,} rows of {table.name} a token needs is not "
            f"known for {model.architecture} (it has {vocabulary:,} tokens); use --raw"
        )
    return Trace(table, _packed(tokens.ids, table), 1, model.architecture or "token")


@dataclass(frozen=True)
class _Hash:
    """The constants of qwen4exp's n-gram hash; a multiplier a token, a size and offset a head."""

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    end_of_text: int
    heads_per_ngram: int

    @classmethod
    def of(cls, model: ModelMap, table: Table) -> "_Hash":
        """Read them from the metadata; raises ColdbenchError where they do not fit together."""
        ngram = _whole(model, "ngram_size")
        heads = _whole(model, "heads_per_ngram")
        count = (ngram - 1) * heads
        if ngram < 2 or heads < 1:
            raise ColdbenchError(f"{model.path}: qwen4exp.ple: {ngram}-grams, {heads} heads each")
        found = cls(
            _wholes(model, "layer_multipliers", ngram),
            _wholes(model, "head_vocab_sizes", count),
            _wholes(model, "head_offsets", count),
            _whole(model, "eos_token_id"),
            heads,
        )
        for size, offset in zip(found.sizes, found.offsets, strict=True):
            if size < 1 or offset + size > table.rows:
                raise ColdbenchError(
                    f"{model.path}: a head of {size:,} rows from row {offset:,} on does not fit "
                    f"the table of {table.rows:,}: damaged"
                )
        return found


def _ngram_rows(constants: _Hash, tokens: Tokens) -> npt.NDArray[np.uint64]:
    """Return the rows, all heads of a token after each other."""
    ids = tokens.ids.astype(np.uint64)
    count, end = len(ids), np.uint64(constants.end_of_text)
    starts = np.asarray(tokens.starts)
    positions = np.arange(count)
    # How far each token is from the first of its sequence.
    positions -= starts[np.searchsorted(starts, positions, side="right") - 1]
    mixed = ids * np.uint64(constants.multipliers[0])
    cut = np.zeros(count, dtype=bool)
    rows = np.empty((count, len(constants.sizes)), dtype=np.uint64)
    for back in range(1, len(constants.multipliers)):
        earlier = np.full(count, end)
        earlier[back:] = ids[: max(0, count - back)]
        # Once a predecessor is missing or ends a text, all older ones count as its end.
        cut |= (positions < back) | (earlier == end)
        earlier[cut] = end
        # Unsigned products and their XOR are modulo 2^64 by themselves.
        mixed = mixed ^ (earlier * np.uint64(constants.multipliers[back]))
        first = (back - 1) * constants.heads_per_ngram
        for head in range(first, first + constants.heads_per_ngram):
            size, offset = constants.sizes[head], constants.offsets[head]
            rows[:, head] = mixed % np.uint64(size) + np.uint64(offset)
    return rows.reshape(-1)


def _packed(rows: npt.NDArray[Any], table: Table) -> Rows:
    return rows.astype(np.uint32) if table.rows <= 2**32 else rows.astype(np.uint64)


def _whole(model: ModelMap, name: str) -> int:
    value = model.metadata.get(f"qwen4exp.ple.{name}")
    if not isinstance(value, int) or value < 0:
        raise ColdbenchError(f"{model.path}: its header has no usable qwen4exp.ple.{name}")
    return value


def _wholes(model: ModelMap, name: str, count: int) -> tuple[int, ...]:
    values = model.metadata.get(f"qwen4exp.ple.{name}")
    if not isinstance(values, tuple) or len(values) != count:
        raise ColdbenchError(f"{model.path}: its header has no qwen4exp.ple.{name} of {count}")
    whole = tuple(int(value) for value in values)
    if any(value < 0 for value in whole):
        raise ColdbenchError(f"{model.path}: qwen4exp.ple.{name} holds negative numbers: damaged")
    return whole


def _tokens(stream: Mapping[str, Any], vocabulary: int, model: ModelMap | None) -> Tokens:
    if "zipf" in stream:
        return zipf_tokens(vocabulary, **stream["zipf"])
    if "recorded" in stream:
        return recorded_tokens(Path(stream["recorded"]), vocabulary)
    if model is None:
        raise ColdbenchError("a text gives tokens, and a raw file has none; use zipf or recorded")
    return text_tokens(Path(stream["text"]), Path(stream["tokenizer"]), model)
