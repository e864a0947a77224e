"""What this machine can and cannot certify for models in a place, found out by trying.

Sources: proc_pid_io(5), proc_pid_status(5), the kernel's admin-guide/pm/cpufreq and
pm/intel_pstate, accounting/psi, admin-guide/mm/transhuge, block/queue-sysfs.
"""

import errno
import mmap
import os
import resource
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from coldbench.common.errors import ColdbenchError
from coldbench.measure.certificate import (
    NotColdError,
    check_certifiable,
    make_cold,
    never_cold,
)
from coldbench.measure.cgroup import Group, memory_controller, own_group
from coldbench.measure.host import host_facts, host_state
from coldbench.measure.pagecache import (
    CACHESTAT,
    MINCORE,
    PAGE_BYTES,
    Query,
    cachestat_pages,
    filesystem,
    opened,
    query_for,
    resident_bytes,
)
from coldbench.measure.reads import AGREEMENT, disk_of

Verdict = Literal["ok", "limited", "no"]

_TEST_BYTES = 8 << 20
_BUDGET_BYTES = 64 << 20
_LARGE_READ_AHEAD_KB = 512
_CAP_IPC_LOCK = 14  # capabilities(7)
_CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Finding:
    """One fact: `ok`, `limited` (results are weaker) or `no` (cannot be had), with its mend."""

    name: str
    value: str
    verdict: Verdict = "ok"
    mend: str = ""


@dataclass(frozen=True)
class Checkup:
    """All findings about the folder `place`, and whether cold can be certified there."""

    place: Path
    cold: bool
    findings: list[Finding]


def examine(place: Path) -> Checkup:
    """Try out what can be certified for a model: a file, or the folder that it will be in.

    Writes a file of 8 MiB there for a moment, makes a control group for a moment, and evicts
    nothing else; takes about a second. Raises ColdbenchError where there is no such place.
    """
    if not place.exists():
        raise ColdbenchError(f"{place}: no such file or folder; name a model or its folder")
    file = None if place.is_dir() else place
    folder = place.resolve() if file is None else place.resolve().parent
    facts = host_facts(place)
    cold, tested = _self_test(folder)
    findings = [
        _user(),
        *_files(file, folder, facts),
        *tested,
        *_groups(folder),
        _pressure(),
        _swap(facts),
        _huge_pages(facts),
        _governor(facts),
        _turbo(),
        *_disk(folder, facts),
        *_machine(facts),
        _locking(),
    ]
    if file is not None:
        cold = cold and all(f.verdict != "no" for f in findings if f.name == "model")
    return Checkup(folder, cold, findings)


def _user() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", "root")
    mend = "own the model's files, and run as root to name other users' processes and set budgets"
    return Finding("user", f"uid {os.geteuid()}, not root", "limited", mend)


def _files(file: Path | None, folder: Path, facts: Mapping[str, Any]) -> Iterator[Finding]:
    kind = str(facts.get("filesystem"))
    if trouble := never_cold(filesystem(folder)):
        yield Finding("file system", kind, "no", trouble[1])
    elif kind == "overlay":
        mend = "asked by mincore; processes outside a container are not seen: use a volume on disk"
        yield Finding("file system", kind, "limited", mend)
    else:
        yield Finding("file system", kind)
    if file is None:
        return
    try:
        check_certifiable(file)
    except NotColdError as error:
        yield Finding("model", f"{error.kind}", "no", str(error))
        return
    size, free = file.stat().st_size, psutil.virtual_memory().available
    value = f"{size / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB of memory free"
    if size < free:
        yield Finding("model", value)
    else:
        mend = "it does not fit: where all of it is read, only cold can be certified; free memory"
        yield Finding("model", value, "limited", mend)


def _self_test(folder: Path) -> tuple[bool, list[Finding]]:
    """Make a file of our own cold, by both queries; then read it and compare all counters."""
    if never_cold(filesystem(folder)):
        return False, [Finding("cold", "never on this file system", "no")]
    try:
        with _own_file(folder) as path:
            cachestat = _trial(path, CACHESTAT)
            mincore = _trial(path, MINCORE)
            queries = [_cachestat(cachestat, path), _mincore(mincore)]
            try:
                made = make_cold([path])["files"][0]
            except ColdbenchError as error:
                return False, [*queries, Finding("cold", "refused", "no", _without(error, path))]
            value = f"certified by {made['method']}, with positive control"
            return True, [*queries, Finding("cold", value), _read_counters(path)]
    except OSError as error:
        mend = f"{error.strerror}; make {folder} writable, or try `coldbench evict` on the model"
        return False, [Finding("cold", "not tried", "no", mend)]


@contextmanager
def _own_file(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".coldbench-doctor-", dir=folder) as own:
        path = Path(own) / "file"
        # Random bytes: a file system that compresses must not have it easier than with a model.
        path.write_bytes(os.urandom(_TEST_BYTES))
        yield path


def _trial(path: Path, query: Query) -> str:
    """Return why a query cannot certify here, or ""."""
    try:
        make_cold([path], query=query)
    except (ColdbenchError, OSError) as error:
        return _without(error, path)
    return ""


def _without(error: Exception, path: Path) -> str:
    said = error.strerror or "" if isinstance(error, OSError) else str(error)
    return said.removeprefix(f"{path}: ")


def _cachestat(trouble: str, path: Path) -> Finding:
    if not trouble:
        return Finding("cachestat", "works")
    try:
        with opened(path) as descriptor:
            cachestat_pages(descriptor, 0, 1)
            suited = query_for(descriptor)
    except ColdbenchError as error:
        missing = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSYS
        if missing:
            return Finding("cachestat", "missing", "limited", "Linux 6.5 has it; mincore does it")
        mend = "allow cachestat in the container's seccomp profile; mincore does it"
        return Finding("cachestat", "forbidden", "limited", mend)
    if suited is MINCORE:
        return Finding(
            "cachestat", "blind here", "limited", "as always on overlayfs; mincore does it"
        )
    return Finding("cachestat", "cannot certify here", "limited", trouble)


def _mincore(trouble: str) -> Finding:
    if not trouble:
        return Finding("mincore", "works")
    return Finding("mincore", "cannot certify here", "limited", trouble)


def _read_counters(path: Path) -> Finding:
    """Read a cold file of ours by mmap: the process's counter must tell its size, then nothing."""
    cold = _mapped_read(path)
    there = resident_bytes(path)
    warm = _mapped_read(path)
    if cold is None or warm is None:
        mend = "physical reads are n/a: build the kernel with CONFIG_TASK_IO_ACCOUNTING"
        return Finding("physical reads", "not counted", "limited", mend)
    value = f"{cold:,} of {_TEST_BYTES:,} bytes counted cold, {warm:,} warm, {there:,} resident"
    if abs(cold - _TEST_BYTES) <= AGREEMENT * _TEST_BYTES and warm == 0 and there == _TEST_BYTES:
        return Finding("physical reads", value)
    mend = "the file system reads more or less than is asked for: warm cannot be told by reads"
    return Finding("physical reads", value, "limited", mend)


def _mapped_read(path: Path) -> int | None:
    before = _own_reads()
    with (
        opened(path) as descriptor,
        mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped,
    ):
        for offset in range(0, len(mapped), PAGE_BYTES):
            mapped[offset]
    after = _own_reads()
    return None if before is None or after is None else after - before


def _own_reads() -> int | None:
    with suppress(OSError):
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    return None


def _groups(folder: Path) -> Iterator[Finding]:
    version = memory_controller()
    name = f"cgroup {version}" if version else "no cgroup memory controller"
    group = None
    try:
        with own_group(_BUDGET_BYTES, "doctor", folder) as group:
            yield Finding("memory budget", f"{name}: can be enforced")
    except ColdbenchError as error:
        yield Finding("memory budget", name, "limited", str(error))
        with own_group(None, "doctor", folder) as group:
            pass
    yield _second_route(group)


def _second_route(group: Group | None) -> Finding:
    route = group.route if group is not None else None
    if route is None:
        mend = "reads are told by the process's counters alone: use a file system on a block device"
        return Finding("second counter", "none", "limited", mend)
    if route == "device":
        mend = "counts everybody's reads: a group of its own needs root or a delegated cgroup"
        return Finding("second counter", "the disk's", "limited", mend)
    return Finding("second counter", route)


def _pressure() -> Finding:
    if (host_state().get("pressure") or {}).get("io") is not None:
        return Finding("pressure (PSI)", "yes")
    return Finding("pressure (PSI)", "no", "limited", "boot with psi=1 (CONFIG_PSI)")


def _swap(facts: Mapping[str, Any]) -> Finding:
    swap = facts.get("swap_bytes")
    if swap == 0:
        return Finding("swap", "none")
    if swap is None:
        return Finding("swap", "n/a", "limited", "mount /proc")
    mend = "swapoff -a, or give arms a budget, whose group does not swap"
    return Finding("swap", f"{swap / 2**20:,.0f} MiB", "limited", mend)


def _huge_pages(facts: Mapping[str, Any]) -> Finding:
    chosen = facts.get("transparent_hugepage")
    if chosen == "always":
        mend = "varies with free memory: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return Finding("huge pages (THP)", chosen, "limited", mend)
    return Finding("huge pages (THP)", chosen or "n/a")


def _governor(facts: Mapping[str, Any]) -> Finding:
    chosen = facts.get("governor")
    if chosen == "performance":
        return Finding("governor", chosen)
    if chosen is None:
        mend = "not shown here (a virtual machine?): set it to performance on the host"
        return Finding("governor", "n/a", "limited", mend)
    return Finding("governor", chosen, "limited", "cpupower frequency-set -g performance")


def _turbo() -> Finding:
    for file, off in ((_CPU / "intel_pstate/no_turbo", "1"), (_CPU / "cpufreq/boost", "0")):
        with suppress(OSError):
            if file.read_text().strip() == off:
                return Finding("turbo", "off")
            mend = f"speed depends on heat: echo {off} > {file}"
            return Finding("turbo", "on", "limited", mend)
    return Finding("turbo", "n/a", "limited", "not shown here (a virtual machine?): see the host")


def _disk(folder: Path, facts: Mapping[str, Any]) -> Iterator[Finding]:
    disk = facts.get("disk")
    rotational = {True: "rotational", False: "not rotational", None: "rotational n/a"}
    kind = rotational[facts.get("disk_rotational")]
    number = disk_of(folder)
    backing = Path(f"/sys/dev/block/{number}/loop/backing_file")
    if disk is None:
        yield Finding("disk", "n/a", "limited", "its settings are unknown: use a local disk")
    elif backing.exists():
        mend = f"{backing.read_text().strip()} below it is cached too: use losetup --direct-io=on"
        yield Finding("disk", f"{disk}, {kind}", "limited", mend)
    else:
        yield Finding("disk", f"{disk}, {kind}")
    ahead = facts.get("disk_read_ahead_kb")
    if ahead is None:
        yield Finding("read_ahead_kb", "n/a", "limited", "how far the kernel reads on is unknown")
    elif ahead > _LARGE_READ_AHEAD_KB:
        mend = f"a touch reads up to {ahead} KiB, lazy looks eager: blockdev --setra 256 (128 KiB)"
        yield Finding("read_ahead_kb", str(ahead), "limited", mend)
    else:
        yield Finding("read_ahead_kb", str(ahead))


def _machine(facts: Mapping[str, Any]) -> Iterator[Finding]:
    container = facts.get("container")
    mend = "processes outside are not seen, nor named when they hold pages: run outside of it"
    yield (
        Finding("container", container, "limited", mend)
        if container
        else Finding("container", "none seen")
    )
    hypervisor = facts.get("hypervisor")
    mend = "the host may cache the disk: attach it there with cache=none (O_DIRECT)"
    yield (
        Finding("hypervisor", hypervisor, "limited", mend)
        if hypervisor
        else Finding("hypervisor", "none seen")
    )


def _locking() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    value = "unlimited" if limit == resource.RLIM_INFINITY else f"limit {limit // 1024:,} KiB"
    if _may_lock_all():
        return Finding("memory locking", f"{value}, which does not bind this user")
    if limit == resource.RLIM_INFINITY:
        return Finding("memory locking", value)
    mend = "arms with mlock are not delivered: ulimit -l unlimited (limits.conf, LimitMEMLOCK=)"
    return Finding("memory locking", value, "limited", mend)


def _may_lock_all() -> bool:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False
