"""Facts about the machine that belong beside every figure, and the state it is in.

What the machine does not show is None, never 0. Sizes are bytes but for the names that end in
another unit, as the kernel's own do (sysfs block/queue, proc_pid_stat(5), PSI's accounting/psi).
"""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from coldbench.measure.cgroup import memory_controller
from coldbench.measure.pagecache import PAGE_BYTES, filesystem

T = TypeVar("T")

_PROC = Path("/proc")
_SYS = Path("/sys")
_CPU = _SYS / "devices/system/cpu"


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
        "disk_read_ahead_kb": _read_ahead_kb(model, queue),
        "disk_rotational": _switch(queue / "rotational") if queue else None,
        "disk_scheduler": _chosen(queue / "scheduler") if queue else None,
    }


def host_state() -> dict[str, Any]:
    """Return what moves: load, pressure, memory, swap, throttling; to be had before and after.

    `pressure` holds, for cpu, io and memory, the per cent of time of the last 10 s and the total
    in microseconds in which some or all tasks stalled; `swapped_*_pages` and `throttle_events`
    count since boot.
    """
    memory = _table(_PROC / "meminfo")
    counters = _table(_PROC / "vmstat")
    throttled = [_number(path) for path in _CPU.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")]
    return {
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


def _read_ahead_kb(model: Path, queue: Path | None) -> int | None:
    """Return the read-ahead in force: that of the mount where it has its own (btrfs, NFS)."""
    number = model.stat().st_dev
    own = _number(_SYS / f"class/bdi/{os.major(number)}:{os.minor(number)}/read_ahead_kb")
    if own is not None or queue is None:
        return own
    return _number(queue / "read_ahead_kb")
