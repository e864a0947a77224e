"""A control group of its own for every run: memory budget, and figures of memory and reads.

Sources: the kernel's admin-guide/cgroup-v2, admin-guide/cgroup-v1 (memory, blkio-controller),
cgroups(7), systemd-run(1), systemd.resource-control(5).
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from coldbench.common.errors import ColdbenchError
from coldbench.measure.hierarchy import (
    Hierarchy,
    NoGroupError,
    find_hierarchy,
    folder_name,
    new_group,
    parents_for,
    read,
    read_number,
    systemd_scope,
    write,
)
from coldbench.measure.reads import Counter, Route, device_counter, disk_of

_PEAK_TOLERANCE = 1.02
_LEAVE_OUT = "or leave the budget out"
_DELEGATE = f"run as root, or inside `systemd-run --user --scope -p Delegate=yes`, {_LEAVE_OUT}"


@dataclass(frozen=True)
class _Memory:
    """Control files of a group's memory; in `closed`, with the value that shuts swap out."""

    limit: Path
    peak: Path
    events: Path
    closed: tuple[tuple[Path, int], ...] = ()


@dataclass(frozen=True)
class Group:
    """What a run is told of its group, and what the group knows afterwards."""

    procs: tuple[Path, ...] = ()
    """The files through which a process enters (one a tree): for the launcher. Empty: no group."""

    enter: tuple[str, ...] = ()
    """What the launcher has to be started by, so that the kernel lets it move its child there."""

    budget_bytes: int | None = None
    _memory: _Memory | None = None
    _reads: Counter | None = None

    def peak_bytes(self) -> int | None:
        """Return the largest charge since the group was made, its page cache included.

        None where the kernel does not keep it (cgroup v2 before Linux 5.19).
        """
        return None if self._memory is None else read_number(self._memory.peak)

    def oom_kills(self) -> int | None:
        """Return how many processes of the group the kernel has killed for want of memory.

        Page cache that fills the group up to its limit is reclaimed and kills nobody.
        """
        if self._memory is None:
            return None
        found = re.search(r"^oom_kill (\d+)$", read(self._memory.events) or "", re.MULTILINE)
        return int(found[1]) if found else None

    def in_force(self) -> bool | None:
        """Say whether the budget was enforced, asked after a run; None where there is none.

        The limit still stands, swap is still shut, and the group was charged for somebody, but
        not beyond the limit (the kernel may pass it by little and for moments only): the peak of
        a run that went elsewhere is 0.
        """
        if self.budget_bytes is None or self._memory is None:
            return None
        peak = self.peak_bytes()
        return (
            read_number(self._memory.limit) == _whole_pages(self.budget_bytes)
            and all(read_number(file) == value for file, value in self._memory.closed)
            and (peak is None or 0 < peak <= self.budget_bytes * _PEAK_TOLERANCE)
        )

    @property
    def route(self) -> Route | None:
        """Return by which way `read_bytes` counts: the group's own, or the whole device."""
        return None if self._reads is None else self._reads.route

    def read_bytes(self) -> int | None:
        """Return the running total of bytes read from the model's disk; None where unknown."""
        return None if self._reads is None else self._reads.read_bytes()


NO_GROUP = Group()


def memory_controller() -> str | None:
    """Return `v1`, `v2` or None: which cgroup version has this machine's memory controller."""
    hierarchy = find_hierarchy()
    return None if hierarchy is None else f"v{hierarchy.version}"


@contextmanager
def own_group(
    budget_bytes: int | None, name: str, model: Path, *, hierarchy: Hierarchy | None = None
) -> Iterator[Group]:
    """Yield a fresh group, which may hold at most `budget_bytes` without swap; remove it after.

    Without a budget there is no limit, and where no group can be had the yielded one is empty but
    for the counter of the disk that holds `model`. With one, page cache counts, but only what the
    group's own processes brought in: what was resident before is charged elsewhere. So a priming
    run belongs inside the same `with` as the run it primes. Cached pages outlive the group.
    `name` only helps a reader of the tree; `hierarchy` stands in for the machine's own.

    On cgroup v1 the kernel (since Linux 6.10) counts a disk's reads by group only after somebody
    has configured its throttling, so a rule without a limit is written, which changes no speed.

    Raises ColdbenchError, before anything runs, where a budget's limit cannot be set or does not
    read back as asked.
    """
    hierarchy = hierarchy or find_hierarchy()
    disk = disk_of(model)
    folder = folder_name(name)
    with ExitStack() as stack:
        yield _group(stack, hierarchy, budget_bytes, folder, disk)


def _group(
    stack: ExitStack, hierarchy: Hierarchy | None, budget: int | None, folder: str, disk: str | None
) -> Group:
    device = device_counter(disk)
    if hierarchy is None:
        if budget is not None:
            raise ColdbenchError(
                "budget: this machine has no cgroup memory controller (kernel built or booted "
                "without it, or hidden in this container); enable it or leave the budget out"
            )
        return Group(_reads=device)
    enter: tuple[str, ...] = ()
    try:
        path = stack.enter_context(new_group(parents_for(hierarchy), folder, hierarchy.version))
    except NoGroupError as direct:
        if budget is None:
            return Group(_reads=device)
        try:
            path, enter = stack.enter_context(systemd_scope(budget, folder, hierarchy.version))
        except NoGroupError as scope:
            raise ColdbenchError(
                f"budget: no control group can be made ({direct}; {scope}); {_DELEGATE}"
            ) from scope
    memory = _memory(path, hierarchy.version)
    if budget is not None:
        memory = _limited(path, hierarchy.version, budget, memory)
    procs, reads = [path / "cgroup.procs"], None
    if hierarchy.version == 2:
        if disk and (path / "io.stat").exists():
            reads = Counter("cgroup io", disk, path / "io.stat")
    elif disk and hierarchy.blkio:
        with suppress(NoGroupError):
            blkio = stack.enter_context(new_group([hierarchy.blkio], folder, 1))
            procs.append(blkio / "cgroup.procs")
            reads = _throttle_counter(blkio, disk)
    return Group(tuple(procs), enter, budget, memory, reads or device)


def _memory(group: Path, version: int) -> _Memory:
    limit, peak, events = ("limit_in_bytes", "max_usage_in_bytes", "oom_control")
    if version == 2:
        limit, peak, events = ("max", "peak", "events")
    return _Memory(
        limit=group / f"memory.{limit}",
        peak=group / f"memory.{peak}",
        events=group / f"memory.{events}",
    )


def _limited(group: Path, version: int, budget: int, memory: _Memory) -> _Memory:
    """Set the limit on a fresh group, swap shut, and believe only what reads back."""
    page_budget = _whole_pages(budget)
    closing: dict[str, int] = {"swap.max": 0}
    if version == 1:
        # Order: memory and swap together may never be below memory alone.
        closing = {"memsw.limit_in_bytes": page_budget, "swappiness": 0}
    # Without swap accounting these files are missing.
    closed = [(group / f"memory.{n}", v) for n, v in closing.items()]
    closed = [(file, value) for file, value in closed if file.exists()]
    try:
        for file, value in ((memory.limit, page_budget), *closed):
            if read_number(file) != value:  # systemd may have set it, and may own it
                write(file, str(value))
    except OSError as error:
        raise ColdbenchError(
            f"budget: {group} takes no limit of {budget} bytes ({error.strerror}); {_DELEGATE}"
        ) from error
    for file, value in ((memory.limit, page_budget), *closed):
        if (found := read_number(file)) != value:
            raise ColdbenchError(f"budget: {file} was told {value} and has {found}; {_DELEGATE}")
    if not closed and _swap_bytes():
        raise ColdbenchError(
            f"budget: swap cannot be shut in {group} (the kernel does not account for it); "
            f"turn swap off (swapoff -a), {_LEAVE_OUT}"
        )
    return _Memory(memory.limit, memory.peak, memory.events, tuple(closed))


def _swap_bytes() -> int:
    return int(psutil.swap_memory().total)


def _whole_pages(size: int) -> int:
    return size - size % os.sysconf("SC_PAGE_SIZE")


def _throttle_counter(group: Path, disk: str) -> Counter | None:
    try:
        write(group / "blkio.throttle.read_bps_device", f"{disk} 0")  # 0: no limit
    except OSError:
        return None
    return Counter("cgroup blkio", disk, group / "blkio.throttle.io_service_bytes")
