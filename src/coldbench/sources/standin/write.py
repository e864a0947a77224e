"""Write stand-ins: the header at once, then each tensor's data as a stream."""

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType
from gguf.gguf_writer import GGUFWriter, WriterState

from coldbench.sources.standin import gemma4, llama, qwen4exp
from coldbench.sources.standin.blocks import constant_data, random_data
from coldbench.sources.standin.design import Constant, Design, Hole, Random, TensorPlan
from coldbench.sources.standin.vocabulary import add_tokenizer
from coldbench.study.models import StandIn

WRITER_VERSION = 1
"""Part of a stand-in's cache key: raised when the same spec gives other bytes."""

_ZEROS = memoryview(bytes(1 << 20))
"""A piece of a hole; told by identity, and a multiple of every file system's block."""

_DESIGNS: dict[str, Callable[[StandIn], Design]] = {
    "gemma4": gemma4.design,
    "qwen4exp": qwen4exp.design,
    "llama": llama.design,
}


def write_standin(spec: StandIn, path: Path) -> str:
    """Write the stand-in to `path` and return the file's SHA-256 (hex).

    The same spec gives the same bytes on every machine; memory stays bounded whatever the size.
    Raises ColdbenchError for a spec that cannot be met, OSError where the disk refuses.
    """
    digest = hashlib.sha256()
    with path.open("wb") as stream:
        for chunk in _file(spec):
            if chunk is _ZEROS:
                stream.seek(len(chunk), os.SEEK_CUR)
            else:
                stream.write(chunk)
            digest.update(chunk)
        stream.truncate()
    return digest.hexdigest()


def size_of(spec: StandIn) -> int:
    """Return the exact size in bytes of the stand-in's file, without writing it.

    Raises ColdbenchError for a spec that cannot be met.
    """
    design = _DESIGNS[spec.architecture](spec)
    return len(_header(design, spec.seed)) + sum(_padded(t.size) for t in design.tensors)


def _file(spec: StandIn) -> Iterator[bytes | memoryview]:
    design = _DESIGNS[spec.architecture](spec)
    yield _header(design, spec.seed)
    for tensor in design.tensors:
        yield from _data(tensor, spec.seed)
        yield bytes(_padded(tensor.size) - tensor.size)


def _data(tensor: TensorPlan, seed: int) -> Iterator[memoryview]:
    match tensor.fill:
        case Constant(value):
            yield constant_data(tensor.values, value)
        case Hole():
            for _ in range(tensor.size // len(_ZEROS)):
                yield _ZEROS
            yield memoryview(bytes(tensor.size % len(_ZEROS)))
        case Random(spread, zero_rows):
            zeros = zero_rows * tensor.shape[0]
            yield from random_data(
                tensor.type, tensor.values, spread, zeros, seed=f"{seed} {tensor.name}"
            )


def _padded(size: int) -> int:
    return -(-size // GGUF_DEFAULT_ALIGNMENT) * GGUF_DEFAULT_ALIGNMENT


def _header(design: Design, seed: int) -> bytes:
    """Return all that comes before the tensors' data."""
    logging.getLogger("gguf").setLevel(logging.WARNING)
    writer = GGUFWriter(None, design.architecture)
    writer.add_name(f"coldbench stand-in {design.architecture}, seed {seed}")
    for key, (value, kind, item_kind) in design.metadata.items():
        writer.add_key_value(f"{design.architecture}.{key}", value, kind, item_kind)
    add_tokenizer(writer, design.vocabulary)
    for tensor in design.tensors:
        writer.add_tensor_info(
            tensor.name,
            tensor.shape[::-1],
            np.dtype(np.void),
            tensor.size,
            raw_dtype=GGMLQuantizationType[tensor.type],
        )
    # Into memory, for which the writer has no call: it is told that its file is open.
    memory = io.BytesIO()
    writer.fout, writer.state = [io.BufferedWriter(memory)], WriterState.EMPTY
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    header = memory.getvalue()
    return header + bytes(_padded(len(header)) - len(header))
