"""Read one GGUF file's header: where its tensors lie, never what is in them.

The layout is that of the GGUF specification, versions 2 and 3 (little-endian).
"""

import os
import re
import struct
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
    Keys,
)

from coldbench.sources.header.reading import (
    MAX_TEXT_BYTES,
    ByteSource,
    Stream,
    StringArrays,
    fail,
    local_file,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TUPLE = 1024
MAX_DIMENSIONS = 4
MIN_KEY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8

_CODES = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_SCALARS = {int(kind): struct.Struct("<" + code) for kind, code in _CODES.items()}
_LFS_POINTER = re.compile(rb"version https?://git-lfs\..*?^size (\d+)$", re.DOTALL | re.MULTILINE)
_WEB_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)


@dataclass(frozen=True)
class Skipped:
    """A metadata value that was stepped over: `count` items (bytes of text) of type `kind`."""

    kind: str
    count: int


Metadata = dict[str, int | float | str | tuple[int | float, ...] | Skipped]


@dataclass(frozen=True)
class Tensor:
    """One tensor: bytes [offset, offset + size) of file number `file`.

    `shape` is in ggml's order (the row length first). `type` is ggml's name, or `type N` for one
    unknown here; then `size` reaches to the next tensor and `size_inferred` is true.
    """

    name: str
    file: int
    offset: int
    size: int
    type: str
    shape: tuple[int, ...]
    size_inferred: bool = False

    @property
    def rows(self) -> int:
        """The number of rows: the product of all lengths but the first."""
        product = 1
        for length in self.shape[1:]:
            product *= length
        return product


@dataclass(frozen=True)
class Header:
    """The header of one GGUF file of `size` bytes; `path` is the real file behind links.

    On a hub, `path` is REPOSITORY/FILE.
    """

    path: Path
    size: int
    version: int
    metadata: Metadata
    tensors: tuple[Tensor, ...]
    notes: tuple[str, ...]


def read_header(path: Path) -> Header:
    """Read the header of the GGUF file `path`.

    Raises ColdbenchError where it is missing, unreadable, no GGUF, damaged or cut off.
    """
    with local_file(path) as source:
        return replace(parse_header(source, StringArrays()), path=Path(os.path.realpath(path)))


def parse_header(source: ByteSource, arrays: StringArrays) -> Header:
    """Read the header of the GGUF file behind `source`; its path is the source's.

    `arrays` learns from this header and may know from others how long its vocabulary is.
    Raises ColdbenchError where it is no GGUF, damaged or cut off.
    """
    path, size = source.path, source.size
    stream = Stream(source)
    _refuse_look_alikes(path, stream.peek(1024))
    stream.skip(len(MAGIC))
    version = stream.u32()
    if version & 0xFFFF == 0:
        fail(path, "is a big-endian GGUF; convert it to little-endian")
    if version not in VERSIONS:
        fail(path, f"has GGUF version {version}; versions 2 and 3 are supported")
    tensor_count, key_count = stream.u64(), stream.u64()
    if tensor_count * MIN_TENSOR_BYTES + key_count * MIN_KEY_BYTES > size:
        fail(
            path,
            f"claims {tensor_count:,} tensors and {key_count:,} metadata keys in "
            f"{size:,} bytes: damaged, fetch it again",
        )
    metadata = _read_metadata(stream, key_count, arrays)
    alignment = metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        fail(path, f"has general.alignment {alignment}, which is no power of two: damaged")
    infos = [_read_tensor(stream) for _ in range(tensor_count)]
    start = _round_up(stream.position, alignment)
    tensors = _placed(path, size, start, alignment, infos)
    end = max((tensor.offset + tensor.size for tensor in tensors), default=start)
    padded = _round_up(end, alignment)
    if any(at + 4 <= size and source.read(at, 4)[:4] == MAGIC for at in {end, padded}):
        fail(
            path,
            f"holds a second GGUF from byte {end:,} on: do not join shards with cat, "
            "keep them apart and name shard 1",
        )
    notes = [
        f"tensor {tensor.name} has {tensor.type}, unknown here: its size is taken from what follows"
        for tensor in tensors
        if tensor.size_inferred
    ]
    if size > padded:
        notes.append(f"{size - end:,} bytes follow the last tensor: a badly resumed download?")
    return Header(
        path=path,
        size=size,
        version=version,
        metadata=metadata,
        tensors=tensors,
        notes=tuple(notes),
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _refuse_look_alikes(path: Path, head: bytes) -> None:
    if head.startswith(MAGIC):
        return
    if not head:
        fail(path, "is an empty file; fetch it again")
    if _WEB_PAGE.match(head):
        fail(path, "this is an HTML page; use the raw/resolve link")
    if pointer := _LFS_POINTER.match(head):
        fail(
            path,
            f"this is a Git LFS pointer for a file of {int(pointer[1]):,} bytes; run git lfs pull",
        )
    if len(head) < len(MAGIC) and MAGIC.startswith(head):
        fail(path, "has a cut-off header: incomplete download?")
    fail(path, f"is not a GGUF file (it begins with {head[:4]!r})")


def _read_metadata(stream: Stream, count: int, arrays: StringArrays) -> Metadata:
    metadata: Metadata = {}
    for _ in range(count):
        key = stream.text()
        if key in metadata:
            fail(stream.path, f"has the metadata key {key} twice: damaged")
        metadata[key] = _read_value(stream, key, stream.u32(), arrays)
    return metadata


def _read_value(
    stream: Stream, key: str, kind: int, arrays: StringArrays
) -> int | float | str | tuple[int | float, ...] | Skipped:
    if kind == GGUFValueType.STRING:
        length = stream.u64()
        if length > MAX_TEXT_BYTES:
            stream.skip(length)
            return Skipped("string", length)
        return stream.take(length).decode("utf-8", errors="backslashreplace")
    if kind == GGUFValueType.ARRAY:
        item_kind, count = stream.u32(), stream.u64()
        if item_kind == GGUFValueType.STRING:
            arrays.skip(stream, key, count)
            return Skipped("string", count)
        item = _scalar(stream, key, item_kind)
        if count > MAX_TUPLE:
            stream.skip(count * item.size)
            return Skipped(GGUFValueType(item_kind).name.lower(), count)
        return tuple(value for (value,) in item.iter_unpack(stream.take(count * item.size)))
    scalar = _scalar(stream, key, kind)
    value: int | float = scalar.unpack(stream.take(scalar.size))[0]
    return value


def _scalar(stream: Stream, key: str, kind: int) -> struct.Struct:
    scalar = _SCALARS.get(kind)
    if scalar is None:
        fail(stream.path, f"has the metadata key {key} of unknown type {kind}: damaged or too new")
    return scalar


def _read_tensor(stream: Stream) -> Tensor:
    """Read one tensor's line of the header; `offset` is still relative to the data section."""
    name = stream.text()
    dimensions = stream.u32()
    if dimensions > MAX_DIMENSIONS:
        fail(stream.path, f"tensor {name} has {dimensions:,} dimensions, more than 4: damaged")
    shape = tuple(stream.u64() for _ in range(dimensions))
    kind, offset = stream.u32(), stream.u64()
    try:
        known = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        return Tensor(name, 0, offset, 0, f"type {kind}", shape, size_inferred=True)
    row = shape[0] if shape else 1
    if row % block:
        fail(
            stream.path,
            f"tensor {name} has rows of {row:,} values, no multiple of {known.name}'s "
            f"block of {block}: damaged",
        )
    tensor = Tensor(name, 0, offset, 0, known.name, shape)
    return replace(tensor, size=row // block * block_bytes * tensor.rows)


def _placed(
    path: Path, size: int, start: int, alignment: int, infos: list[Tensor]
) -> tuple[Tensor, ...]:
    """Turn relative into absolute offsets, infer unknown sizes and check every bound."""
    names = set()
    for info in infos:
        if info.name in names:
            fail(path, f"has two tensors called {info.name}: damaged")
        names.add(info.name)
        if info.offset % alignment:
            fail(path, f"tensor {info.name} is not aligned to {alignment} bytes: damaged")
    order = sorted(range(len(infos)), key=lambda index: infos[index].offset)
    placed = {}
    for index, following in zip_longest(order, order[1:]):
        info = infos[index]
        offset = start + info.offset
        bound = size if following is None else start + infos[following].offset
        length = max(0, bound - offset) if info.size_inferred else info.size
        if following is not None and offset + length > bound:
            fail(path, f"tensors {info.name} and {infos[following].name} overlap: damaged")
        placed[index] = replace(info, offset=offset, size=length)
    need = max((tensor.offset + tensor.size for tensor in placed.values()), default=0)
    for index in order:
        tensor = placed[index]
        beyond = tensor.offset + tensor.size > size
        if beyond and (tensor.size or tensor.size_inferred):
            fail(
                path,
                f"needs {need:,} bytes, has {size:,}: incomplete download? "
                f"(the first tensor out of bounds is {tensor.name})",
            )
    return tuple(placed[index] for index in range(len(infos)))
