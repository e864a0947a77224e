"""A memory budget for a run, enforced by a control group of its own.

Sources: the kernel's admin-guide/cgroup-v2 and admin-guide/cgroup-v1/memory, cgroups(7).
"""

import errno
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from coldbench.common.errors import ColdbenchError

log = logging.getLogger(__name__)

_PREFIX = "coldbench-"
_OURS = re.compile(r"coldbench-(\d+)-.*")
_REMOVALS = 40
_REMOVAL_PAUSE_S = 0.05
_DELEGATE = (
    "run as root, or inside `systemd-run --user --scope -p Delegate=yes`, or leave the budget out"
)


@dataclass(frozen=True)
class Hierarchy:
    """The cgroup tree with a memory controller: its version, root, and this process's own group."""

    version: Literal[1, 2]
    root: Path
    own: Path


@dataclass(frozen=True)
class Budget:
    """What a run under a budget is told and leaves behind; all None where there is no budget."""

    procs: Path | None = None
    """The file through which a process enters the group: for the launcher."""

    _peak: Path | None = None
    _events: Path | None = None

    def peak_bytes(self) -> int | None:
        """Return the largest charge since the group was made, its page cache included.

        None where the kernel does not keep it (cgroup v2 before Linux 5.19).
        """
        return None if self._peak is None else _read_number(self._peak)

    def oom_kills(self) -> int | None:
        """Return how many processes of the group the kernel has killed for want of memory."""
        if self._events is None:
            return None
        found = re.search(r"^oom_kill (\d+)$", _read(self._events) or "", re.MULTILINE)
        return int(found[1]) if found else None


def memory_controller() -> str | None:
    """Return `v1`, `v2` or None: which cgroup version has this machine's memory controller."""
    hierarchy = _hierarchy()
    return None if hierarchy is None else f"v{hierarchy.version}"


@contextmanager
def memory_budget(
    budget_bytes: int | None, name: str, *, hierarchy: Hierarchy | None = None
) -> Iterator[Budget]:
    """Yield a fresh group that holds at most `budget_bytes`, swap not allowed; remove it after.

    Page cache counts, but only what the group's own processes brought in: what was resident
    before is charged elsewhere. So a priming run belongs inside the same `with` as the run it
    primes. With None there is no group and no limit. `name` only helps a reader of the tree;
    `hierarchy` stands in for the machine's own.

    Raises ColdbenchError, before anything runs, where the limit cannot be set or does not read
    back as asked.
    """
    if budget_bytes is None:
        yield Budget()
        return
    hierarchy = hierarchy or _hierarchy()
    if hierarchy is None:
        raise ColdbenchError(
            "budget: this machine has no cgroup memory controller (kernel built or booted without "
            "it, or hidden in this container); enable it or leave the budget out"
        )
    group = _new_group(hierarchy, name)
    try:
        yield _limited(group, hierarchy.version, budget_bytes)
    finally:
        if not _removed(group):
            log.warning("%s: still in use, left behind; the next budget removes it", group)


def _hierarchy() -> Hierarchy | None:
    """Find the memory controller: v1 where that has it, else v2 where its root lists it."""
    mounts = psutil.disk_partitions(all=True)
    v1 = [m.mountpoint for m in mounts if m.fstype == "cgroup" and "memory" in m.opts.split(",")]
    v2 = [m.mountpoint for m in mounts if m.fstype == "cgroup2"]
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, own = line.split(":", 2)
        if "memory" in controllers.split(",") and v1:
            return Hierarchy(1, Path(v1[0]), _below(Path(v1[0]), own))
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        number, _, own = line.split(":", 2)
        if number == "0" and v2 and "memory" in _words(Path(v2[0]) / "cgroup.controllers"):
            return Hierarchy(2, Path(v2[0]), _below(Path(v2[0]), own))
    return None


def _below(root: Path, own: str) -> Path:
    """Join a group's path to its mount; in a container that mount may itself be the group."""
    group = root / own.lstrip("/")
    return group if group.is_dir() else root


def _new_group(hierarchy: Hierarchy, name: str) -> Path:
    """Make a group below this process's own, so that limits from outside stay in force.

    In v2 a group that holds processes may not hand controllers down (the root excepted), so there
    the new group often has to stand beside our own, under the nearest ancestor that is ours.
    """
    folder = f"{_PREFIX}{os.getpid()}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:64]}"
    parents = [hierarchy.own]
    if hierarchy.version == 2:
        parents += [p for p in hierarchy.own.parents if p.is_relative_to(hierarchy.root)]
    reasons = []
    for parent in parents:
        try:
            if hierarchy.version == 2:
                _hand_down_memory(parent)
                if not os.access(parent / "cgroup.procs", os.W_OK):
                    raise OSError(errno.EACCES, "processes may not be moved below it")
            _remove_leftovers(parent)
            _make(parent / folder)
        except OSError as error:
            reasons.append(f"{parent}: {_reason(error)}")
        else:
            return parent / folder
    raise ColdbenchError(f"budget: no control group can be made ({reasons[0]}); {_DELEGATE}")


def _reason(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "holds processes itself, so it cannot hand the memory controller down"
    return error.strerror or str(error)


def _hand_down_memory(parent: Path) -> None:
    if "memory" in _words(parent / "cgroup.subtree_control"):
        return
    if "memory" not in _words(parent / "cgroup.controllers"):
        raise OSError(errno.ENOTSUP, "has no memory controller")
    _write(parent / "cgroup.subtree_control", "+memory")


def _limited(group: Path, version: int, budget_bytes: int) -> Budget:
    """Set the limit on a fresh group, swap closed, and believe only what reads back."""
    if version == 1:
        limit, peak, events = "limit_in_bytes", "max_usage_in_bytes", "oom_control"
        # Order: memory and swap together may never be below memory alone.
        settings = {limit: budget_bytes, "memsw.limit_in_bytes": budget_bytes, "swappiness": 0}
    else:
        limit, peak, events = "max", "peak", "events"
        settings = {limit: budget_bytes, "swap.max": 0}
    try:
        for name, value in settings.items():
            # Without swap accounting those files are missing: then there is no swap to close.
            if name == limit or (group / f"memory.{name}").exists():
                _write(group / f"memory.{name}", str(value))
    except OSError as error:
        raise ColdbenchError(
            f"budget: {group} takes no limit of {budget_bytes} bytes ({error.strerror}); "
            f"{_DELEGATE}"
        ) from error
    page = os.sysconf("SC_PAGE_SIZE")
    found = _read_number(group / f"memory.{limit}")
    if found != budget_bytes - budget_bytes % page:
        raise ColdbenchError(
            f"budget: {group} was told {budget_bytes} bytes and has {found}; {_DELEGATE}"
        )
    present = group / f"memory.{peak}"
    return Budget(
        group / "cgroup.procs",
        present if present.exists() else None,
        group / f"memory.{events}",
    )


def _remove_leftovers(parent: Path) -> None:
    """Remove the groups of coldbench processes that were killed before they could."""
    for group in parent.glob(f"{_PREFIX}*"):
        found = _OURS.fullmatch(group.name)
        if found and not psutil.pid_exists(int(found[1])):
            with suppress(OSError):
                _remove(group)


def _removed(group: Path) -> bool:
    """Remove a group, waiting a little for the last of its killed processes to leave it."""
    for _ in range(_REMOVALS):
        try:
            _remove(group)
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(_REMOVAL_PAUSE_S)
        else:
            return True
    return False


def _make(group: Path) -> None:
    group.mkdir()


def _remove(group: Path) -> None:
    group.rmdir()


def _write(path: Path, text: str) -> None:
    # In one write(2) without O_CREAT, which control files refuse with an error that misleads.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _words(path: Path) -> list[str]:
    return (_read(path) or "").split()


def _read_number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None
