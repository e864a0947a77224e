"""The bytes of a GGUF file in order, wherever the file lies, without those that nobody wants.

A local file's cold page cache must not be spoiled: only the pages that are wanted are read, in
small chunks, with the kernel's readahead switched off for the descriptor (posix_fadvise(2),
POSIX_FADV_RANDOM).
"""

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol

from coldbench.common.errors import ColdbenchError
from coldbench.common.text import visible

CHUNK_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 20
_MAX_NAME_BYTES = 64

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class ByteSource(Protocol):
    """The bytes of one file of `size` bytes; `path` is its name in messages."""

    path: Path
    size: int

    def read(self, offset: int, least: int) -> bytes:
        """Return the bytes from `offset` on: `least` of them, and more where more cost little.

        All of the `least` must lie in the file. Raises ColdbenchError where they cannot be had.
        """


def fail(path: Path, what: str) -> NoReturn:
    """Raise ColdbenchError: `path` and what is wrong with it, in one line."""
    # Names from a damaged header may hold anything, line breaks too.
    raise ColdbenchError(f"{path}: {visible(what, breaks=False)}")


class LocalFile:
    """A ByteSource on an open descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.size = path, os.fstat(descriptor).st_size
        self._descriptor = descriptor

    def read(self, offset: int, least: int) -> bytes:
        """Return a chunk; OSError is the opener's."""
        want = max(least, CHUNK_BYTES)
        parts, have = [], 0
        while have < least:
            # pread may return less than asked; nothing at all means the file just shrank.
            part = os.pread(self._descriptor, want - have, offset + have)
            if not part:
                fail(self.path, "became shorter while it was read")
            parts.append(part)
            have += len(part)
        return b"".join(parts)


@contextmanager
def local_file(path: Path) -> Iterator[LocalFile]:
    """Open `path` for as long as the context lasts; raises ColdbenchError where that fails."""
    try:
        # A look at the mode first: opening a FIFO would wait for a writer.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            fail(path, "is a folder; name the .gguf file in it (for a split model, shard 1)")
        if not stat.S_ISREG(mode):
            fail(path, "is not a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and path.is_symlink():
            fail(path, f"is a link to {os.path.realpath(path)}, which does not exist")
        fail(path, f"cannot be read: {error.strerror}")
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        yield LocalFile(path, descriptor)
    except OSError as error:
        fail(path, f"cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


class Stream:
    """A source's bytes in order, through a window; steps over what is not wanted."""

    def __init__(self, source: ByteSource) -> None:
        self.path = source.path
        self._source, self._size = source, source.size
        self._window, self._base, self._at = b"", 0, 0

    @property
    def position(self) -> int:
        """The offset of the next byte."""
        return self._base + self._at

    def _require(self, count: int) -> None:
        if count > self._size - self.position:
            fail(self.path, f"has a cut-off header ({self._size:,} bytes): incomplete download?")

    def peek(self, most: int) -> bytes:
        """Return the next bytes, fewer than `most` at the end of the file."""
        count = min(most, self._size - self.position)
        if self._at + count > len(self._window):
            self._refill(count)
        return self._window[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes and step over them."""
        self._require(count)
        if self._at + count > len(self._window):
            self._refill(count)
        taken = self._window[self._at : self._at + count]
        self._at += count
        return taken

    def _refill(self, count: int) -> None:
        kept = self._window[self._at :]
        self._base, self._at = self.position, 0
        self._window = kept + self._source.read(self._base + len(kept), count - len(kept))

    def skip(self, count: int) -> None:
        """Step over `count` bytes without reading them."""
        self._require(count)
        self._at += count
        if self._at > len(self._window):
            self._base, self._at, self._window = self.position, 0, b""

    def skip_to(self, distance: int, landmark: bytes) -> bool:
        """Step over `distance` bytes if `landmark` follows them; return whether it does."""
        if distance + len(landmark) > self._size - self.position:
            return False
        before = self._window, self._base, self._at
        self.skip(distance)
        if self.peek(len(landmark)) == landmark:
            return True
        self._window, self._base, self._at = before
        return False

    def u32(self) -> int:
        """Return the next 32-bit unsigned integer."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """Return the next 64-bit unsigned integer."""
        return int(_U64.unpack(self.take(8))[0])

    def text(self) -> str:
        """Return the next name; bytes that are no UTF-8 are escaped."""
        length = self.u64()
        self._require(length)
        if length > MAX_TEXT_BYTES:
            fail(self.path, f"has a name of {length:,} bytes in its header: damaged")
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


class StringArrays:
    """The byte lengths of string arrays that were stepped over, to jump over them elsewhere.

    The format gives no byte length for an array of strings, so a vocabulary has to be read to find
    its end. The quant tiers of a model have the same one, which is worth reading only once where
    each byte comes over a network. An array with the same key and number of strings counts as the
    same if at the same distance the same name follows; else it is read through.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[int, bytes]] = {}

    def skip(self, stream: Stream, key: str, count: int) -> None:
        """Step over the `count` strings of the array `key`."""
        known = self._known.get((key, count))
        if known is not None and stream.skip_to(*known):
            return
        begin = stream.position
        stream.skip_strings(count)
        length = stream.position - begin
        follows = stream.peek(8)
        if length > CHUNK_BYTES and len(follows) == 8:
            name = min(_U64.unpack(follows)[0], _MAX_NAME_BYTES)
            self._known[key, count] = (length, stream.peek(8 + name))
