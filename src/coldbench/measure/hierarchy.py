"""The cgroup tree: where it is, and how a group is made in it, by hand or by systemd.

Sources: the kernel's admin-guide/cgroup-v2 and admin-guide/cgroup-v1/memory, cgroups(7),
systemd-run(1), systemd.resource-control(5).
"""

import errno
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

log = logging.getLogger(__name__)

_PREFIX = "coldbench-"
_OURS = re.compile(r"coldbench-(\d+)-.*")
_REMOVALS = 40
_PAUSE_S = 0.05
_SCOPE_S = 20.0


class NoGroupError(Exception):
    """No group can be made in this way, and why."""


@dataclass(frozen=True)
class Hierarchy:
    """The cgroup tree with a memory controller: its version, root, and a process's group in it.

    `blkio` is the process's group in version 1's blkio tree, which is another.
    """

    version: Literal[1, 2]
    root: Path
    own: Path
    blkio: Path | None = None


def folder_name(name: str) -> str:
    """Return what a group of this process is called, so that it can be known for a leftover."""
    return f"{_PREFIX}{os.getpid()}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:64]}"


def find_hierarchy(pid: int | None = None) -> Hierarchy | None:
    """Find the memory controller: v1 where that has it, else v2 where its root lists it."""
    mounts = psutil.disk_partitions(all=True)
    groups: dict[str, str] = {}
    for line in (read(Path(f"/proc/{pid or 'self'}/cgroup")) or "").splitlines():
        number, controllers, own = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(",") if number != "0" else ["unified"], own)

    def find(controller: str, kind: str) -> tuple[Path, Path] | None:
        for mount in mounts:
            ours = controller == "unified" or controller in mount.opts.split(",")
            if mount.fstype == kind and ours and controller in groups:
                root = Path(mount.mountpoint)
                return root, _below(root, groups[controller])
        return None

    if v1 := find("memory", "cgroup"):
        blkio = find("blkio", "cgroup")
        return Hierarchy(1, *v1, blkio and blkio[1])
    v2 = find("unified", "cgroup2")
    return Hierarchy(2, *v2) if v2 and "memory" in _words(v2[0] / "cgroup.controllers") else None


def _below(root: Path, own: str) -> Path:
    """Join a group's path to its mount; in a container that mount may itself be the group."""
    group = root / own.lstrip("/")
    return group if group.is_dir() else root


def parents_for(hierarchy: Hierarchy) -> list[Path]:
    """List where a new group may stand, best first: below our own, so that its limits stay.

    In v2 a group that holds processes may not hand controllers down (the root excepted), so there
    the new group often has to stand beside our own, under the nearest ancestor that is ours.
    """
    parents = [hierarchy.own]
    if hierarchy.version == 2:
        parents += [p for p in hierarchy.own.parents if p.is_relative_to(hierarchy.root)]
    return parents


@contextmanager
def new_group(parents: list[Path], folder: str, version: int) -> Iterator[Path]:
    """Make a group below the first of `parents` that allows it. Raises NoGroupError."""
    reasons = []
    for parent in parents:
        group = parent / folder
        try:
            if version == 2:
                _hand_down(parent)
                if not os.access(parent / "cgroup.procs", os.W_OK):
                    raise OSError(errno.EACCES, "processes may not be moved below it")
            _remove_leftovers(parent)
            _make(group)
        except OSError as error:
            reasons.append(f"{parent}: {_reason(error)}")
        else:
            break
    else:
        raise NoGroupError(reasons[0])
    try:
        yield group
    finally:
        _end_all(group)
        if not _removed(group):
            log.warning("%s: still in use, left behind; the next run removes it", group)


def _reason(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "holds processes itself, so it cannot hand the memory controller down"
    return error.strerror or str(error)


def _hand_down(parent: Path) -> None:
    control = parent / "cgroup.subtree_control"
    if "memory" not in _words(control):
        if "memory" not in _words(parent / "cgroup.controllers"):
            raise OSError(errno.ENOTSUP, "has no memory controller")
        write(control, "+memory")
    # A user's part of the tree often lacks it; then the device is counted.
    if "io" in _words(parent / "cgroup.controllers") and "io" not in _words(control):
        with suppress(OSError):
            write(control, "+io")


@contextmanager
def systemd_scope(budget: int, folder: str, version: int) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Have systemd make the group: a scope that a waiting `cat` holds open.

    Yields the group, and what to start a launcher by that is to move its child there.
    An ordinary user may move processes only within the part of the tree that is his manager's,
    and a login session is no part of it; so each launcher is started in a scope of its own there.
    Raises NoGroupError.
    """
    program = shutil.which("systemd-run")
    if program is None:
        raise NoGroupError("no systemd-run on the PATH")
    user = () if os.geteuid() == 0 else ("--user",)
    enter = (program, *user, "--scope", "--quiet", "--collect")
    limits = ("-p", f"MemoryMax={budget}", "-p", "MemorySwapMax=0", "-p", "IOAccounting=yes")
    unit = f"{folder}.scope"
    with subprocess.Popen(
        [*enter, f"--unit={unit}", *limits, "--", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as holder:  # on leaving, its stdin is closed: it ends, and with it the scope
        end = time.monotonic() + _SCOPE_S
        while holder.poll() is None:
            found = find_hierarchy(holder.pid)
            if found and found.version == version and found.own.name == unit:
                yield found.own, (*enter, "--")
                return
            if time.monotonic() > end:
                holder.terminate()
                raise NoGroupError(f"systemd-run made no group within {_SCOPE_S:.0f} s")
            time.sleep(_PAUSE_S)
        said = holder.stderr.read().strip().splitlines() if holder.stderr else []
        raise NoGroupError(f"systemd-run: {said[-1] if said else 'made no group'}")


def _remove_leftovers(parent: Path) -> None:
    """Remove the groups of coldbench processes that were killed before they could."""
    for group in parent.glob(f"{_PREFIX}*"):
        found = _OURS.fullmatch(group.name)
        if found and not psutil.pid_exists(int(found[1])):
            _end_all(group)
            with suppress(OSError):
                _remove(group)


def _end_all(group: Path) -> None:
    """End what is still in a group: a killed launcher could not, and it would disturb the next."""
    for pid in _words(group / "cgroup.procs"):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)


def _removed(group: Path) -> bool:
    """Remove a group, waiting a little for the last of its killed processes to leave it."""
    for _ in range(_REMOVALS):
        try:
            _remove(group)
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _make(group: Path) -> None:
    group.mkdir()


def _remove(group: Path) -> None:
    group.rmdir()


def write(path: Path, text: str) -> None:
    """Write a control file. Raises OSError, as the kernel refuses the value or the writer."""
    # In one write(2) without O_CREAT, which control files refuse with an error that misleads.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> str | None:
    """Return a control file's text, or None where it cannot be had."""
    try:
        return path.read_text()
    except OSError:
        return None


def _words(path: Path) -> list[str]:
    return (read(path) or "").split()


def read_number(path: Path) -> int | None:
    """Return a control file's figure, or None where it has none (`max`) or cannot be had."""
    text = (read(path) or "").strip()
    return int(text) if text.isdigit() else None
