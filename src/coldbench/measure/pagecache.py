"""What of a file is in the page cache, and how to get it out; `certificate` proves that it is out.

Two ways to ask, and both have their liars. cachestat(2) (Linux 6.5) needs no mapping but looks at
the wrong inode on overlayfs, where it always answers 0. mincore(2) answers "all resident" for
files that the caller may not write (Linux 5.2 closed that side channel). So overlayfs is asked
with mincore, and a file of somebody else's is not asked at all.
"""

import ctypes
import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import psutil

from coldbench.common.errors import ColdbenchError

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NOT_TOLD = (
    "no write permission on it; own the file or may write it, else the kernel does not tell what "
    "is in its page cache"
)

_CACHESTAT = 451  # the same on all architectures that Python runs on, but for Alpha
_WINDOW_BYTES = 1 << 30  # a multiple of every page size
_MOST_HOLES = 10_000
_OVERLAYFS_MAGIC = 0x794C7630  # statfs(2)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    _fields_ = (
        ("nr_cache", ctypes.c_uint64),
        ("nr_dirty", ctypes.c_uint64),
        ("nr_writeback", ctypes.c_uint64),
        ("nr_evicted", ctypes.c_uint64),
        ("nr_recently_evicted", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class FileSystem:
    """Where a file lives: the file system's type, and its mount's device, point and options."""

    type: str
    device: str
    mount: str
    options: str = ""


@dataclass(frozen=True)
class Query:
    """A way to ask for resident pages: of a descriptor, from an offset, a length > 0 in bytes."""

    name: Literal["cachestat", "mincore"]
    pages: Callable[[int, int, int], int]


def filesystem(path: Path) -> FileSystem:
    """Return the file system of the file (or folder) that `path` leads to.

    Raises ColdbenchError where there is no such file.
    """
    with _errors_of(path):
        target = path.resolve(strict=True)
        device = target.stat().st_dev
    best = (False, -1, -1)
    found = FileSystem("unknown", "unknown", "/")
    for index, part in enumerate(psutil.disk_partitions(all=True)):
        mount = Path(part.mountpoint)
        if not target.is_relative_to(mount):
            continue
        # Among mounts above the file the one of its device holds it; of these the innermost and
        # last. The device alone would not do: btrfs gives its subvolumes numbers of their own.
        rank = (_device_of(mount) == device, len(mount.parts), index)
        if rank > best:
            best, found = rank, FileSystem(part.fstype, part.device, part.mountpoint, part.opts)
    return found


def resident_bytes(
    path: Path, offset: int = 0, length: int | None = None, *, query: Query | None = None
) -> int:
    """Return how many bytes of a file's range are in the page cache, symlinks followed.

    Counted in whole pages that the range touches, then cut to the range's size; the range ends
    with the file whatever `length` says. Looking does not change what is resident. `query` is
    asked instead of the one that suits the file. Raises ColdbenchError where the file cannot be
    read, and where this user neither owns nor may write it: then the kernel does not tell.
    """
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        end = size if length is None else min(size, offset + length)
        if end <= offset:
            return 0
        if not may_ask(path):
            raise ColdbenchError(f"{path}: residency unknown: {NOT_TOLD}")
        pages = (query or query_for(descriptor)).pages(descriptor, offset, end - offset)
        return min(pages * PAGE_BYTES, end - offset)


def may_ask(path: Path) -> bool:
    """Say whether the kernel tells this user what of the file is in the page cache.

    It does to root, the file's owner and whoever may write it (can_do_mincore() in mm/mincore.c).
    """
    owner = path.stat().st_uid
    return os.geteuid() in (0, owner) or os.access(path, os.W_OK, effective_ids=True)


def query_for(descriptor: int) -> Query:
    """Return the way to ask about an open file of which the kernel tells this user."""
    if not _on_overlayfs(descriptor):
        try:
            cachestat_pages(descriptor, 0, 1)
        except OSError as error:
            # EPERM: the file is ours, so a container's seccomp filter that does not know the call.
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
                raise
        else:
            return CACHESTAT
    return MINCORE


def evict(paths: Iterable[Path]) -> None:
    """Ask the kernel to put files out of the page cache; it may leave pages without a word.

    Dirty pages are written out first (fsync(2) takes a read-only descriptor on Linux), since
    posix_fadvise(POSIX_FADV_DONTNEED) leaves them; on overlayfs that does not reach a lower file,
    whose pages go at the second try. `certificate.make_cold` sees to it that nothing is left.
    Raises ColdbenchError naming a file that cannot be read or written out.
    """
    for path in paths:
        with opened(path) as descriptor:
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EINVAL):  # nothing to write out there
                    raise
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def dirty_bytes(path: Path) -> int | None:
    """Return how many bytes of a file in the page cache are not on the disk yet.

    None where only cachestat(2) could tell and does not.
    """
    with opened(path) as descriptor:
        if not may_ask(path) or query_for(descriptor) is not CACHESTAT:
            return None
        state = _cachestat(descriptor, 0, 0)
    return int(state.nr_dirty + state.nr_writeback) * PAGE_BYTES


def open_for_writing(path: Path) -> bool | None:
    """Say whether any process can write to a file now, hidden ones too; None where unknown.

    Nobody gets a read lease on a file that is open for writing (fcntl(2), F_SETLEASE), and only
    the file's owner and root get one at all.
    """
    with opened(path) as descriptor:
        try:
            # Whoever opens the file meanwhile makes the kernel send a signal, by default a deadly
            # one; this one is ignored by default.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            return True if error.errno == errno.EAGAIN else None
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False


def hole_bytes(path: Path) -> int | None:
    """Return how many bytes of a file need no reading: holes, which the kernel fills with zeros.

    By lseek(2)'s SEEK_DATA and SEEK_HOLE; None for a file in very many pieces.
    """
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        data = position = 0
        for _ in range(_MOST_HOLES):
            try:
                start = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: no data behind this position
                    raise
                return size - data
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            data += position - start
    return None


def cachestat_pages(descriptor: int, offset: int, length: int) -> int:
    """Ask cachestat(2) for the resident pages of a range (`length` > 0).

    Raises OSError: ENOSYS before Linux 6.5, EPERM for a file of somebody else's.
    """
    return int(_cachestat(descriptor, offset, length).nr_cache)


def mincore_pages(descriptor: int, offset: int, length: int) -> int:
    """Ask mincore(2) for the resident pages of a range (`length` > 0). Raises OSError."""
    start = offset - offset % PAGE_BYTES
    end = offset + length
    total = 0
    while start < end:
        span = min(_WINDOW_BYTES, end - start)
        pages = -(-span // PAGE_BYTES)
        # PROT_NONE: the mapping is only looked at.
        address = _libc.mmap(None, span, 0, 1, descriptor, start)  # 1: MAP_SHARED
        if address == ctypes.c_void_p(-1).value:
            raise _last_error()
        try:
            vector = np.empty(pages, dtype=np.uint8)
            if _libc.mincore(address, span, vector.ctypes.data):
                raise _last_error()
            total += int(np.count_nonzero(vector & 1))
        finally:
            _libc.munmap(address, span)
        start += span
    return total


CACHESTAT = Query("cachestat", cachestat_pages)
MINCORE = Query("mincore", mincore_pages)


def _cachestat(descriptor: int, offset: int, length: int) -> _Cachestat:
    answer = _Cachestat()
    asked = _Range(offset, length)
    if _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(answer), 0):
        raise _last_error()
    return answer


def _on_overlayfs(descriptor: int) -> bool:
    """Ask fstatfs(2), whose answer begins with the type: far quicker than reading the mounts."""
    answer = (ctypes.c_long * 64)()
    if _libc.fstatfs(descriptor, answer):
        raise _last_error()
    return answer[0] == _OVERLAYFS_MAGIC


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _device_of(mount: Path) -> int | None:
    try:
        return mount.stat().st_dev
    except OSError:
        return None


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor of a file to read; raises ColdbenchError naming it for every OSError."""
    with _errors_of(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be read: {error.strerror}") from error
