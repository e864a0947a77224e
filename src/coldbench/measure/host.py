"""Facts about the machine that belong beside every figure, and the state it is in.

What the machine does not show is None, never 0. Sizes are bytes but for the names that end in
another unit, as the kernel's own do (sysfs block/queue, proc_pid_stat(5), PSI's accounting/psi).
"""

import os
import platform
import resource
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil

from coldbench.measure.cgroup import memory_controller
from coldbench.measure.pagecache import PAGE_BYTES, filesystem

T = TypeVar("T")

_PROC = Path("/proc")
_SYS = Path("/sys")
_CPU = _SYS / "devices/system/cpu"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512


def host_facts(model: Path) -> dict[str, Any]:
    """Return what stays the same during a study: machine, kernel, settings, the model's disk.

    `model` is a file or folder that exists; symlinks are followed. Raises ColdbenchError where it
    does not.
    """
    kind = filesystem(model)
    queue = _queue(model.resolve(), kind.device)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "logical_cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "swap_bytes": _maybe(lambda: psutil.swap_memory().total),
        "page_bytes": PAGE_BYTES,
        "transparent_hugepage": _chosen(_SYS / "kernel/mm/transparent_hugepage/enabled"),
        "governor": _text(_CPU / "cpu0/cpufreq/scaling_governor"),
        "hypervisor": _hypervisor(),
        "container": _container(),
        "cgroup_memory": _maybe(memory_controller),
        "filesystem": kind.type,
        "device": kind.device,
        "disk": queue.parent.name if queue else None,
        "disk_read_ahead_kb": _number(ahead) if (ahead := read_ahead_file(model)) else None,
        "disk_rotational": _switch(queue / "rotational") if queue else None,
        "disk_scheduler": _chosen(queue / "scheduler") if queue else None,
    }


def read_ahead_file(model: Path) -> Path | None:
    """Return the sysfs file of the read-ahead in force for a file, in KiB; None where none is.

    That of the mount where it has its own (NFS, btrfs), else that of the disk. A file system that
    is on no one device and hides its own is None: the disk's would decide nothing there.
    """
    number = model.stat().st_dev
    kind = filesystem(model)
    own = _SYS / f"class/bdi/{os.major(number)}:{os.minor(number)}"
    if kind.type == "btrfs":
        own = _btrfs_bdi(kind.device) or own
    if (own / "read_ahead_kb").exists():
        return own / "read_ahead_kb"
    queue = None if os.major(number) == 0 else _queue(model.resolve(), kind.device)
    return queue / "read_ahead_kb" if queue else None


def _btrfs_bdi(device: str) -> Path | None:
    """Return what the kernel keeps of reading ahead on the btrfs that has `device`."""
    name = Path(device).resolve().name
    found = (one.parents[1] / "bdi" for one in _SYS.glob(f"fs/btrfs/*/devices/{name}"))
    return next(found, None)


def host_state(model: Path | None = None) -> dict[str, Any]:
    """Return what moves: work, load, pressure, memory, swap; to be had before and after a run.

    `busy_s` is the time that all CPUs together spent on tasks (user, nice and system; interrupts
    are left out, since a run's own reads cause them) and `stolen_s` what the hypervisor took, both
    in the kernel's ticks of 10 ms (proc_stat(5)); `own_cpu_s` is the part of this process and of
    the children it has waited for, the engine and its launcher among them (getrusage(2)), and
    `reclaim_s` that of kswapd, which the page cache of a large model keeps busy. `disk_read_bytes`
    and `disk_written_bytes` count on the disk below `model` (sysfs block/stat), `running` is the
    number of runnable tasks. `pressure` holds, for cpu, io and memory, the per cent of time of the
    last 10 s and the total in microseconds in which some or all tasks stalled; `swapped_*_pages`
    and `throttle_events` count since boot, `monotonic_s` is the clock at which all this was read.
    """
    memory = _table(_PROC / "meminfo")
    counters = _table(_PROC / "vmstat")
    throttled = [_number(path) for path in _CPU.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")]
    cpus = _cpus()
    disk = _disk_statistics(model) if model else []
    return {
        "monotonic_s": time.monotonic(),
        "busy_s": sum(cpus[:3]) / _TICKS_PER_S if cpus else None,  # user, nice, system
        "stolen_s": cpus[7] / _TICKS_PER_S if len(cpus) > 7 else None,
        "own_cpu_s": _own_cpu_s(),
        "reclaim_s": _reclaim_s(),
        "running": _running(),
        "disk_read_bytes": disk[2] * _SECTOR_BYTES if disk else None,
        "disk_written_bytes": disk[6] * _SECTOR_BYTES if disk else None,
        "load": _maybe(lambda: list(os.getloadavg())),
        "pressure": {
            what: _pressure(_PROC / "pressure" / what) for what in ("cpu", "io", "memory")
        },
        "memory_free_bytes": _kb(memory, "MemFree"),
        "memory_available_bytes": _kb(memory, "MemAvailable"),
        "swap_used_bytes": _swap_used(memory),
        "swapped_in_pages": counters.get("pswpin"),
        "swapped_out_pages": counters.get("pswpout"),
        "throttle_events": sum(n for n in throttled if n is not None) if throttled else None,
    }


def _cpus() -> list[int]:
    """Return the ticks of all CPUs by kind, in proc_stat(5)'s order; empty where it is not had."""
    line = (_text(_PROC / "stat") or "").partition("\n")[0].split()
    return [int(ticks) for ticks in line[1:]] if line[:1] == ["cpu"] else []


def _own_cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _reclaim_s() -> float | None:
    """Return the CPU time of the threads that reclaim memory, one a NUMA node."""
    stats = [_text(_PROC / name / "stat") for name in _kswapd()]
    # After the command in brackets: utime and stime are fields 14 and 15 (proc_pid_stat(5)).
    fields = [stat.rpartition(")")[2].split() for stat in stats if stat is not None]
    return sum(int(f[11]) + int(f[12]) for f in fields) / _TICKS_PER_S if fields else None


@cache
def _kswapd() -> tuple[str, ...]:
    comms = _PROC.glob("[0-9]*/comm")
    return tuple(comm.parent.name for comm in comms if (_text(comm) or "").startswith("kswapd"))


def _running() -> int | None:
    # "load load load running/all last-pid", proc_loadavg(5)
    fields = (_text(_PROC / "loadavg") or "").split()
    return int(fields[3].partition("/")[0]) if len(fields) > 3 else None


def _disk_statistics(model: Path) -> list[int]:
    """Return the counters of the disk below a file, in the order of sysfs block/stat."""
    path = _disk_statistics_path(model)
    return [int(count) for count in ((_text(path) or "") if path else "").split()]


@cache
def _disk_statistics_path(model: Path) -> Path | None:
    queue = _queue(model.resolve(), filesystem(model).device)
    return queue.parent / "stat" if queue else None


def _maybe(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except (OSError, ValueError, RuntimeError):
        return None


def _text(path: Path) -> str | None:
    return _maybe(lambda: path.read_text(errors="replace").strip(" \n\0")) or None


def _number(path: Path) -> int | None:
    text = _text(path)
    return _maybe(lambda: int(text)) if text is not None else None


def _switch(path: Path) -> bool | None:
    number = _number(path)
    return None if number is None else bool(number)


def _chosen(path: Path) -> str | None:
    """Return the bracketed word of a sysfs choice such as `always [madvise] never`."""
    words = (_text(path) or "").split()
    return next((word[1:-1] for word in words if word.startswith("[")), None)


def _table(path: Path) -> dict[str, int]:
    """Read lines of a name and a number, as in /proc/meminfo and /proc/vmstat."""
    lines = (line.replace(":", " ").split() for line in (_text(path) or "").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _kb(memory: dict[str, int], name: str) -> int | None:
    return memory[name] * 1024 if name in memory else None


def _swap_used(memory: dict[str, int]) -> int | None:
    total, free = _kb(memory, "SwapTotal"), _kb(memory, "SwapFree")
    return None if total is None or free is None else total - free


def _pressure(path: Path) -> dict[str, float] | None:
    text = _text(path)
    if text is None:  # no PSI in this kernel, or switched off
        return None
    found = {}
    for line in text.splitlines():
        who, *fields = line.split()
        values = dict(field.split("=") for field in fields)
        found[f"{who}_avg10"] = float(values["avg10"])
        found[f"{who}_total_us"] = float(values["total"])
    return found


def _cpu_field(name: str) -> str | None:
    for line in (_text(_PROC / "cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _cpu_model() -> str | None:
    """Return the processor's name; most ARM machines only have it in their device tree."""
    return (
        _cpu_field("model name")
        or _cpu_field("cpu model")
        or _text(_SYS / "firmware/devicetree/base/model")
        or platform.processor()
        or None
    )


def _hypervisor() -> str | None:
    if kind := _text(_SYS / "hypervisor/type"):
        return kind
    if "hypervisor" in (_cpu_field("flags") or "").split():
        vendor = _text(_SYS / "class/dmi/id/sys_vendor")
        return f"yes ({vendor})" if vendor else "yes"
    return None


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    return _text(Path("/run/systemd/container"))


def _queue(target: Path, device: str) -> Path | None:
    """Return the sysfs queue of the disk below a file; that of a partition is its disk's."""
    numbers = [target.stat().st_dev]
    # btrfs and overlayfs show a number without a device; the mount may name the real one.
    if (special := _maybe(lambda: os.stat(device).st_rdev)) is not None:
        numbers.append(special)
    for number in numbers:
        block = _SYS / f"dev/block/{os.major(number)}:{os.minor(number)}"
        if block.exists():
            block = block.resolve()
            disk = block.parent if (block / "partition").exists() else block
            if (disk / "queue").is_dir():
                return disk / "queue"
    return None
