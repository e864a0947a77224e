"""Read one GGUF file's header: where its tensors lie, never what is in them.

The layout is that of the GGUF specification, versions 2 and 3 (little-endian). Reading must not
spoil a cold page cache: only the header's pages are read, in small chunks, with the kernel's
readahead switched off for the descriptor (posix_fadvise(2), POSIX_FADV_RANDOM).
"""

import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
    Keys,
)

from coldbench.common.errors import ColdbenchError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
CHUNK_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 20
MAX_TUPLE = 1024
MAX_DIMENSIONS = 4
MIN_KEY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
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
    """The header of one GGUF file of `size` bytes; `path` is the real file behind links."""

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
    with _opened(path) as (descriptor, size):
        _refuse_look_alikes(path, os.pread(descriptor, 1024, 0))
        stream = _Stream(path, descriptor, size, start=len(MAGIC))
        version = stream.u32()
        if version & 0xFFFF == 0:
            _fail(path, "is a big-endian GGUF; convert it to little-endian")
        if version not in VERSIONS:
            _fail(path, f"has GGUF version {version}; versions 2 and 3 are supported")
        tensor_count, key_count = stream.u64(), stream.u64()
        if tensor_count * MIN_TENSOR_BYTES + key_count * MIN_KEY_BYTES > size:
            _fail(
                path,
                f"claims {tensor_count:,} tensors and {key_count:,} metadata keys in "
                f"{size:,} bytes: damaged, fetch it again",
            )
        metadata = _read_metadata(stream, key_count)
        alignment = metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            _fail(path, f"has general.alignment {alignment}, which is no power of two: damaged")
        infos = [_read_tensor(stream) for _ in range(tensor_count)]
        start = _round_up(stream.position, alignment)
        tensors = _placed(path, size, start, alignment, infos)
        end = max((tensor.offset + tensor.size for tensor in tensors), default=start)
        padded = _round_up(end, alignment)
        if any(at < size and os.pread(descriptor, 4, at) == MAGIC for at in (end, padded)):
            _fail(
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
        path=Path(os.path.realpath(path)),
        size=size,
        version=version,
        metadata=metadata,
        tensors=tensors,
        notes=tuple(notes),
    )


def _fail(path: Path, what: str) -> NoReturn:
    # Names from a damaged header may hold anything, line breaks too.
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in what)
    raise ColdbenchError(f"{path}: {line}")


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """Yield a descriptor without readahead, and the file's size in bytes."""
    try:
        # A look at the mode first: opening a FIFO would wait for a writer.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            _fail(path, "is a folder; name the .gguf file in it (for a split model, shard 1)")
        if not stat.S_ISREG(mode):
            _fail(path, "is not a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and path.is_symlink():
            _fail(path, f"is a link to {os.path.realpath(path)}, which does not exist")
        _fail(path, f"cannot be read: {error.strerror}")
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        yield descriptor, os.fstat(descriptor).st_size
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def _refuse_look_alikes(path: Path, head: bytes) -> None:
    if head.startswith(MAGIC):
        return
    if not head:
        _fail(path, "is an empty file; fetch it again")
    if _WEB_PAGE.match(head):
        _fail(path, "this is an HTML page; use the raw/resolve link")
    if pointer := _LFS_POINTER.match(head):
        _fail(
            path,
            f"this is a Git LFS pointer for a file of {int(pointer[1]):,} bytes; run git lfs pull",
        )
    if len(head) < len(MAGIC) and MAGIC.startswith(head):
        _fail(path, "has a cut-off header: incomplete download?")
    _fail(path, f"is not a GGUF file (it begins with {head[:4]!r})")


class _Stream:
    """The file's bytes in order, through a window of one chunk; steps over what is not wanted."""

    def __init__(self, path: Path, descriptor: int, size: int, start: int) -> None:
        self.path, self._descriptor, self._size = path, descriptor, size
        self._window, self._base, self._at = b"", start, 0

    @property
    def position(self) -> int:
        return self._base + self._at

    def _require(self, count: int) -> None:
        if count > self._size - self.position:
            _fail(self.path, f"has a cut-off header ({self._size:,} bytes): incomplete download?")

    def take(self, count: int) -> bytes:
        self._require(count)
        if self._at + count > len(self._window):
            self._refill(count)
        taken = self._window[self._at : self._at + count]
        self._at += count
        return taken

    def _refill(self, count: int) -> None:
        self._base, self._at = self.position, 0
        want = max(count, CHUNK_BYTES)
        parts, have = [], 0
        while have < count:
            # pread may return less than asked; nothing at all means the file just shrank.
            part = os.pread(self._descriptor, want - have, self._base + have)
            if not part:
                _fail(self.path, "became shorter while it was read")
            parts.append(part)
            have += len(part)
        self._window = b"".join(parts)

    def skip(self, count: int) -> None:
        self._require(count)
        self._at += count
        if self._at > len(self._window):
            self._base, self._at, self._window = self.position, 0, b""

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def text(self) -> str:
        length = self.u64()
        self._require(length)
        if length > MAX_TEXT_BYTES:
            _fail(self.path, f"has a name of {length:,} bytes in its header: damaged")
        return self.take(length).decode("utf-8", errors="backslashreplace")

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings without making Python objects of them."""
        self._require(8 * count)
        unpack = _U64.unpack_from
        while count:
            self._require(8)
            if self._at + 8 > len(self._window):
                self._refill(8)
            window, at, last = self._window, self._at, len(self._window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            self.skip(at - self._at)


def _read_metadata(stream: _Stream, count: int) -> Metadata:
    metadata: Metadata = {}
    for _ in range(count):
        key = stream.text()
        if key in metadata:
            _fail(stream.path, f"has the metadata key {key} twice: damaged")
        metadata[key] = _read_value(stream, key, stream.u32())
    return metadata


def _read_value(
    stream: _Stream, key: str, kind: int
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
            stream.skip_strings(count)
            return Skipped("string", count)
        item = _scalar(stream, key, item_kind)
        if count > MAX_TUPLE:
            stream.skip(count * item.size)
            return Skipped(GGUFValueType(item_kind).name.lower(), count)
        return tuple(value for (value,) in item.iter_unpack(stream.take(count * item.size)))
    scalar = _scalar(stream, key, kind)
    value: int | float = scalar.unpack(stream.take(scalar.size))[0]
    return value


def _scalar(stream: _Stream, key: str, kind: int) -> struct.Struct:
    scalar = _SCALARS.get(kind)
    if scalar is None:
        _fail(stream.path, f"has the metadata key {key} of unknown type {kind}: damaged or too new")
    return scalar


def _read_tensor(stream: _Stream) -> Tensor:
    """Read one tensor's line of the header; `offset` is still relative to the data section."""
    name = stream.text()
    dimensions = stream.u32()
    if dimensions > MAX_DIMENSIONS:
        _fail(stream.path, f"tensor {name} has {dimensions:,} dimensions, more than 4: damaged")
    shape = tuple(stream.u64() for _ in range(dimensions))
    kind, offset = stream.u32(), stream.u64()
    try:
        known = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        return Tensor(name, 0, offset, 0, f"type {kind}", shape, size_inferred=True)
    row = shape[0] if shape else 1
    if row % block:
        _fail(
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
            _fail(path, f"has two tensors called {info.name}: damaged")
        names.add(info.name)
        if info.offset % alignment:
            _fail(path, f"tensor {info.name} is not aligned to {alignment} bytes: damaged")
    order = sorted(range(len(infos)), key=lambda index: infos[index].offset)
    placed = {}
    for index, following in zip_longest(order, order[1:]):
        info = infos[index]
        offset = start + info.offset
        bound = size if following is None else start + infos[following].offset
        length = max(0, bound - offset) if info.size_inferred else info.size
        if following is not None and offset + length > bound:
            _fail(path, f"tensors {info.name} and {infos[following].name} overlap: damaged")
        placed[index] = replace(info, offset=offset, size=length)
    need = max((tensor.offset + tensor.size for tensor in placed.values()), default=0)
    for index in order:
        tensor = placed[index]
        beyond = tensor.offset + tensor.size > size
        if beyond and (tensor.size or tensor.size_inferred):
            _fail(
                path,
                f"needs {need:,} bytes, has {size:,}: incomplete download? "
                f"(the first tensor out of bounds is {tensor.name})",
            )
    return tuple(placed[index] for index in range(len(infos)))
