"""Cold and warm with proof: certified before a run, and judged again after it."""

import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from coldbench.common.errors import ColdbenchError
from coldbench.measure.holders import holders, layer_files
from coldbench.measure.pagecache import (
    NOT_TOLD,
    PAGE_BYTES,
    FileSystem,
    Query,
    dirty_bytes,
    evict,
    filesystem,
    hole_bytes,
    may_ask,
    open_for_writing,
    opened,
    query_for,
    resident_bytes,
)
from coldbench.records import CacheState, Io, Residency

Kind = Literal[
    "permission", "memory", "own cache", "network", "mapped", "overlay", "dirty", "in use", "query"
]
"""Why a file cannot be certified cold.

permission: not this user's file, so the kernel does not tell; memory: its file system lives there;
own cache: its file system caches apart from the page cache; network: a server or a FUSE process
caches it too; mapped: another process has pages of it mapped; overlay: the same by way of the file
below an overlayfs; dirty: being written; in use: read, or locked in some other way; query: the
kernel does not see a page that was just read.
"""

_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}
_OWN_CACHE = {"zfs"}
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "virtiofs", "vboxsf"),
    *("ceph", "lustre", "gpfs", "beegfs", "orangefs", "pvfs2", "glusterfs", "prl_fs", "vmhgfs"),
}
_COMPRESSING = {"btrfs", "bcachefs", "f2fs", "squashfs", "erofs", "ntfs3", "ubifs", "jffs2"}

_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.02

_SHARE = 0.02
_WARM_SHARE = 0.01
_SLACK_BYTES = 1 << 20


class NotColdError(ColdbenchError):
    """A file that cannot be made cold, or not be certified to be: `kind` says why."""

    def __init__(self, path: Path, kind: Kind, reason: str) -> None:
        super().__init__(f"{_named(path)}: {reason}")
        self.kind: Kind = kind


def make_cold(paths: Iterable[Path], *, query: Query | None = None) -> dict[str, Any]:
    """Put files out of the page cache and return the certificate that not one page is left.

    For all files of a model, just before its engine is started. Each file is written out, evicted
    and asked for; then, as a positive control, one page of it is read, seen by the same query,
    and evicted again: a query that always answers 0 certifies nothing. At the end all files are
    asked once more. `query` is asked instead of the one that suits the file.

    The certificate can be written as JSON: `state`, `took_s`, and for each of `files` its `name`,
    `bytes`, `filesystem`, `method` (cachestat or mincore), `attempts`, `holes_bytes` (what fills
    the cache without being read; None: unknown), bytes of it resident before (`found_bytes`), of
    the control's page when seen (`control_seen_bytes`) and evicted (`control_left_bytes`), and
    at the end (`left_bytes`, always 0).

    Raises NotColdError naming the file and why, ColdbenchError for a file that cannot be read.
    """
    start = time.perf_counter()
    files = [(path, _made_cold(path, query)) for path in paths]
    for path, file in files:
        # The first of many shards may have come back while the last one was evicted.
        file["left_bytes"] = resident_bytes(path, query=query)
        if file["left_bytes"]:
            raise _held(path, filesystem(path), file["left_bytes"])
    return {
        "state": "cold",
        "took_s": time.perf_counter() - start,
        "files": [file for _, file in files],
    }


def check_certifiable(path: Path) -> FileSystem:
    """Return the file system of a file that can be certified cold, as far as looking can tell.

    Nothing is evicted. Raises NotColdError, or ColdbenchError for a file that cannot be read.
    """
    kind = filesystem(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ColdbenchError(f"{_named(path)}: is not a regular file; name the model's file")
    for place in (kind, *(filesystem(layer) for layer in layer_files(path, kind)[:1])):
        if found := never_cold(place):
            raise NotColdError(path, *found)
    if not may_ask(path):
        raise NotColdError(path, "permission", f"cannot be certified cold: {NOT_TOLD}")
    return kind


def never_cold(place: FileSystem) -> tuple[Kind, str] | None:
    """Return why no file of a file system can be certified cold, or None."""
    at = f"{place.type} at {place.mount}"
    if place.type in _IN_MEMORY:
        return "memory", f"cannot be cold: it lives in memory ({at}); move it to a disk"
    cannot = f"cannot be certified cold: {at}"
    if place.type in _OWN_CACHE:
        return "own cache", f"{cannot} caches apart from the page cache; move it elsewhere"
    if place.type in _NETWORK or place.type.startswith("fuse"):
        served = "is cached by its server as well, out of reach"
        return "network", f"{cannot} {served}; move it to a local disk"
    return None


def disproved(
    state: CacheState,
    certificate: Mapping[str, Any],
    *,
    before: Residency,
    after: Residency,
    io: Io,
    primed_bytes: int | None = None,
    read_ahead_bytes: int | None = None,
) -> str:
    """Return why a run was not in its cache state after all, or "".

    `certificate` is what `make_cold` returned for this run (for a warm one, before its priming
    run), `before` and `after` are the model's residency just before and after the process, `io`
    its reads, `primed_bytes` what its priming run left resident, and `read_ahead_bytes` the
    device's read-ahead window. What is unknown proves nothing.

    Not cold: something was resident before the start; or the cache took in more of the model
    than the process itself read, so that somebody else read it too. Up to 2% and 1 MiB are let
    pass, as are holes of the files; on file systems that compress, bytes read tell nothing.

    Not warm: less was resident at the start than the priming run left; or the process read
    physically. Up to 1% of what the priming run left (of the model, where that is unknown) is let
    pass, since it cannot move a figure by more than the floor of 1% that claims have, and 1 MiB,
    which a file of the engine's own or a block map of the file system may take. Of pages that the
    priming run did not bring in, one read-ahead window: the kernel begins the next one when a page
    that it marked is touched, and nobody waits for it.
    """
    if state == "cold":
        return _not_cold(certificate, before, after, io)
    if state == "warm":
        return _not_warm(certificate, before, after, io, primed_bytes, read_ahead_bytes or 0)
    return ""


def _not_cold(certificate: Mapping[str, Any], before: Residency, after: Residency, io: Io) -> str:
    if before.total_bytes:
        return (
            f"{before.total_bytes:,} bytes were in the page cache again just before the start: "
            "another process reads the model"
        )
    holes = [file["holes_bytes"] for file in certificate.get("files", [])]
    reads = _own_reads(io)
    if not after.files or reads is None or None in holes:
        return ""
    if after.total_bytes <= reads * (1 + _SHARE) + sum(holes) + _SLACK_BYTES:
        return ""
    return (
        f"the page cache took in {after.total_bytes:,} bytes of the model, of which the engine "
        f"itself read only {reads:,}: another process read the model during the run"
    )


def _not_warm(
    certificate: Mapping[str, Any],
    before: Residency,
    after: Residency,
    io: Io,
    primed_bytes: int | None,
    window_bytes: int,
) -> str:
    sizes = [file["bytes"] for file in certificate.get("files", [])]
    basis = primed_bytes if primed_bytes is not None else sum(sizes) if sizes else None
    if basis is None:
        return ""
    allowed = max(_SLACK_BYTES, _WARM_SHARE * basis)
    if primed_bytes is not None and before.files and primed_bytes - before.total_bytes > allowed:
        return (
            f"evicted in between: of {primed_bytes:,} bytes that the priming run left in the page "
            f"cache, {before.total_bytes:,} were there at the start"
        )
    reads = _own_reads(io)
    new = 0
    if before.files and after.files:
        new = min(max(0, after.total_bytes - before.total_bytes), reads or 0)
    if reads is None or (reads - new <= allowed and new <= max(allowed, window_bytes)):
        return ""
    read = f"the engine read {reads:,} bytes from the disk"
    if primed_bytes is not None and reads > primed_bytes + allowed:
        return (
            f"{read}, more than the {primed_bytes:,} that its priming run left in the page cache: "
            "it does not fit into memory (or its budget), or goes around the cache (O_DIRECT)"
        )
    if reads - new <= allowed:
        return f"{read} that its priming run had not read: the two did not do the same"
    return f"{read}: what was in the page cache was evicted during the run"


def _own_reads(io: Io) -> int | None:
    """Return the reads of the engine, with those of children that it did not wait for if known."""
    if io.read_bytes is None:
        return None
    of_group = (io.second_route or "").startswith("cgroup")
    return max(io.read_bytes, io.second_read_bytes or 0) if of_group else io.read_bytes


def _made_cold(path: Path, query: Query | None) -> dict[str, Any]:
    kind = check_certifiable(path)
    if any(open_for_writing(file) for file in (path, *layer_files(path, kind))):
        raise _written(path, kind)
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        method = (query or query_for(descriptor)).name
    found = resident_bytes(path, query=query)
    attempts = _emptied(path, kind, query)
    return {
        "name": path.name,
        "bytes": size,
        "filesystem": kind.type,
        "method": method,
        "holes_bytes": None if kind.type in _COMPRESSING else hole_bytes(path),
        "found_bytes": found,
        "attempts": attempts,
        **(_controlled(path, size, kind, query, method) if size else {}),
    }


def _emptied(path: Path, kind: FileSystem, query: Query | None) -> int:
    """Evict a file until nothing is left, and return how many attempts that took."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
        evict([path])
        left = resident_bytes(path, query=query)
        if not left:
            return attempt + 1
    raise _held(path, kind, left)


def _controlled(
    path: Path, size: int, kind: FileSystem, query: Query | None, method: str
) -> dict[str, int]:
    """Read a page in the middle of a file, see it with the same query, evict it again."""
    offset = size // 2 - size // 2 % PAGE_BYTES
    with opened(path) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead: one page only
        os.pread(descriptor, 1, offset)
    seen = resident_bytes(path, offset, PAGE_BYTES, query=query)
    if not seen:
        raise NotColdError(
            path,
            "query",
            f"cannot be certified cold: {method} does not see a page that was just read, so its "
            f"answer on {kind.type} at {kind.mount} is worth nothing; move it to another file "
            "system (one without DAX)",
        )
    _emptied(path, kind, query)
    left = resident_bytes(path, offset, PAGE_BYTES, query=query)
    return {"control_seen_bytes": seen, "control_left_bytes": left}


def _written(path: Path, kind: FileSystem) -> NotColdError:
    """Name who may write: even if nothing of the file is resident now, it will be."""
    held = holders([path.resolve(), *layer_files(path, kind)])
    writers = ", ".join(held.writing) or "a process that cannot be seen"
    reason = f"cannot be certified cold: open for writing in {writers}"
    return NotColdError(path, "dirty", f"{reason}; run again once nothing writes to it")


def _held(path: Path, kind: FileSystem, left: int) -> NotColdError:
    """Find out what keeps pages of a file in the cache."""
    said = f"cannot be made cold: {left:,} bytes stay in the page cache"
    layers = layer_files(path, kind)
    held = holders([path.resolve(), *layers])
    hidden = f" ({held.hidden} processes of other users could not be looked at)"
    unseen = hidden if held.hidden else ""
    if held.mapping:
        mapped = f"mapped by {'; '.join(held.mapping)}; end that and run again"
        if layers:
            below = f"of {layers[0]} below {kind.type} at {kind.mount}"
            return NotColdError(path, "overlay", f"{said}, {below}, {mapped}")
        return NotColdError(path, "mapped", f"{said}, {mapped}")
    dirty = sum(dirty_bytes(file) or 0 for file in ([path] if not layers else layers[:1]))
    if dirty or held.writing:
        writers = f", open for writing in {', '.join(held.writing)}" if held.writing else ""
        return NotColdError(
            path,
            "dirty",
            f"{said}, {dirty:,} of them not yet written to the disk{writers}{unseen}; run again "
            "once nothing writes to it",
        )
    readers = f"open in {', '.join(held.reading)}" if held.reading else "perhaps locked or read"
    return NotColdError(
        path,
        "in use",
        f"{said} of {kind.type} at {kind.mount}, {readers}{unseen}; run again once nothing else "
        "uses it",
    )


def _named(path: Path) -> str:
    """Name a file, and the real one where it is behind a link."""
    real = os.path.realpath(path)
    return str(path) if os.path.abspath(path) == real else f"{path} (a link to {real})"
