"""What of a file is in the page cache, and how to get it out, each with proof.

Two ways to ask, and both have their liars. cachestat(2) (Linux 6.5) needs no mapping but looks at
the wrong inode on overlayfs, where it always answers 0. mincore(2) answers "all resident" for
files that the caller may not write (Linux 5.2 closed that side channel). So overlayfs is asked
with mincore, and a file of somebody else's is not asked at all.
"""

import ctypes
import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from coldbench.common.errors import ColdbenchError

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_CACHESTAT = 451  # the same on all architectures that Python runs on, but for Alpha
_WINDOW_BYTES = 1 << 30  # a multiple of every page size
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.02

_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}
_OWN_CACHE = {"zfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "gpfs", "afs"}
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
    """Where a file lives: the type of its file system, the device as mounted, the mount point."""

    type: str
    device: str
    mount: str


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
            best, found = rank, FileSystem(part.fstype, part.device, part.mountpoint)
    return found


def resident_bytes(path: Path, offset: int = 0, length: int | None = None) -> int:
    """Return how many bytes of a file's range are in the page cache, symlinks followed.

    Counted in whole pages that the range touches, then cut to the range's size; the range ends
    with the file whatever `length` says. Looking does not change what is resident. Raises
    ColdbenchError where the file cannot be read, and where this user neither owns nor may write
    it: then the kernel does not tell.
    """
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        end = size if length is None else min(size, offset + length)
        if end <= offset:
            return 0
        pages = _resident_pages(path, descriptor, offset, end - offset)
        return min(pages * PAGE_BYTES, end - offset)


def evict(paths: Iterable[Path]) -> None:
    """Put files out of the page cache and certify that not one page of them is left.

    Dirty pages are written out first (fsync(2) takes a read-only descriptor on Linux), since
    posix_fadvise(POSIX_FADV_DONTNEED) leaves them, and says nothing of what it leaves. Raises
    ColdbenchError naming the file, the bytes that stay and why.
    """
    for path in paths:
        kind = filesystem(path)
        if kind.type in _IN_MEMORY:
            raise ColdbenchError(
                f"{path}: cannot be cold: it lives in memory ({kind.type} at {kind.mount}); "
                f"move it to a disk"
            )
        if kind.type in _OWN_CACHE:
            raise ColdbenchError(
                f"{path}: cannot be certified cold: {kind.type} at {kind.mount} caches apart from "
                f"the page cache; move it to another file system"
            )
        for attempt in range(_ATTEMPTS):
            left = _evict_once(path)
            if left == 0:
                break
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_FIRST_PAUSE_S * 2**attempt)
        else:
            raise ColdbenchError(
                f"{path}: cannot be made cold: {left} bytes stay in the page cache: "
                f"{_why_resident(path, kind)}"
            )


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


def _resident_pages(path: Path, descriptor: int, offset: int, length: int) -> int:
    owner = os.fstat(descriptor).st_uid
    if os.geteuid() not in (0, owner) and not os.access(path, os.W_OK, effective_ids=True):
        raise ColdbenchError(
            f"{path}: residency unknown: no write permission on it; own the file or may write "
            f"it, else the kernel does not tell what is in its page cache"
        )
    if not _on_overlayfs(descriptor):
        try:
            return cachestat_pages(descriptor, offset, length)
        except OSError as error:
            # EPERM: the file is ours, so a container's seccomp filter that does not know the call.
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
                raise
    return mincore_pages(descriptor, offset, length)


def _evict_once(path: Path) -> int:
    with _opened(path) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EINVAL):  # nothing to write out there
                raise
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return resident_bytes(path)


def _why_resident(path: Path, kind: FileSystem) -> str:
    mappers, hidden = _mappers(path.resolve())
    if mappers:
        return f"mapped by {', '.join(mappers)}; end that and run again"
    unseen = f" ({hidden} processes of other users could not be looked at)" if hidden else ""
    if dirty := _dirty_bytes(path):
        return f"{dirty} of them are not written to the disk yet{unseen}; run again once it is idle"
    if kind.type in _NETWORK or kind.type.startswith("fuse"):
        return f"{kind.type} at {kind.mount} decides itself{unseen}; move it to a local disk"
    return (
        f"in use on {kind.type} at {kind.mount}, perhaps read or locked by another "
        f"process{unseen}; run again once nothing else uses it"
    )


def _dirty_bytes(path: Path) -> int:
    with _opened(path) as descriptor:
        try:
            state = _cachestat(descriptor, 0, 0)
        except OSError:
            return 0
    return int(state.nr_dirty + state.nr_writeback) * PAGE_BYTES


def _mappers(path: Path) -> tuple[list[str], int]:
    """Return who maps the file, as `process PID (NAME)`, and how many would not be looked at."""
    facts = path.stat()
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
    mappers, hidden = [], 0
    for process in psutil.process_iter(["name"]):
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="surrogateescape")
        except PermissionError:
            hidden += 1
            continue
        except (OSError, ValueError):
            continue
        for line in maps.splitlines():
            # address permissions offset device inode path; the device of an overlay or a btrfs
            # subvolume is not the one that stat shows, so the path will do as well.
            field = line.split(maxsplit=5)
            if int(field[4]) == facts.st_ino and (field[3] == device or field[5:] == [str(path)]):
                mappers.append(f"process {process.pid} ({process.info['name']})")
                break
    return mappers, hidden


def _device_of(mount: Path) -> int | None:
    try:
        return mount.stat().st_dev
    except OSError:
        return None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
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
