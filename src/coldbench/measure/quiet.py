"""Other work on the machine: waited for before a block, and told from a run's own during it.

What a run itself causes is not held against it: the time of its process, its launcher and this
one is subtracted, that of kswapd too, interrupts are not counted, and what the engine's own
counters say it read is taken from the disk's.
"""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from coldbench.common.errors import ColdbenchError
from coldbench.measure.host import host_state
from coldbench.measure.pagecache import PAGE_BYTES
from coldbench.records import Run
from coldbench.study.quiet import QuietLimits, QuietSettings

log = logging.getLogger(__name__)

SAMPLE_S = 1.0
"""How long the machine is looked at to see whether it is quiet."""

NOTE = "disturbed: "
"""How the note on a run begins that was disturbed and counts all the same."""

_TICKS_S = 0.02
_DISK_BYTES = 4 * 2**20
_MOST_NAMED = 3


def disturbance(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    wall_s: float | None,
    own_cpu_s: float | None,
    own_read_bytes: int | None,
    cpus: int | None,
) -> dict[str, float | None]:
    """Return what others did between two states of `host.host_state`; None where it is not known.

    `wall_s` is the time between the two, `own_cpu_s` the CPU time and `own_read_bytes` the
    physical reads that are not others'. `other_cpu` and `stolen` are shares of the time of all
    `cpus`, `other_disk` is bytes a second read and written on the model's disk, `swapped_in` bytes,
    `throttled` events. The kernel counts CPU time by sampling at its ticks and the engine by its
    clock, so up to two ticks of 10 ms a CPU are no one's; up to 4 MiB of the disk are its file
    system's own.
    """

    def moved(name: str) -> float | None:
        first, last = before.get(name), after.get(name)
        return None if first is None or last is None else float(last - first)

    def share(seconds: float | None) -> float | None:
        if seconds is None or not wall_s or not cpus:
            return None
        return max(0.0, seconds - _TICKS_S * cpus) / (wall_s * cpus)

    busy, stolen = moved("busy_s"), moved("stolen_s")
    other_s = None
    if busy is not None and own_cpu_s is not None:
        other_s = busy - own_cpu_s - (moved("reclaim_s") or 0.0)
    read, written = moved("disk_read_bytes"), moved("disk_written_bytes")
    other_disk = None
    if read is not None and written is not None and own_read_bytes is not None and wall_s:
        other_disk = max(0.0, read + written - own_read_bytes - _DISK_BYTES) / wall_s
    swapped = moved("swapped_in_pages")
    return {
        "other_cpu": share(other_s),
        "stolen": share(stolen),
        "other_disk": other_disk,
        "swapped_in": None if swapped is None else swapped * PAGE_BYTES,
        "throttled": moved("throttle_events"),
    }


def disturbed(measures: Mapping[str, float | None], limits: QuietLimits) -> str:
    """Return why what `disturbance` found is more than the limits allow, or "".

    What is not known disturbs nothing. The default limits suit a machine of few CPUs: where nothing
    else runs, other work takes well below 1% of two CPUs and the hypervisor of a shared host now
    and then 3% (`disturbance` in the runs.jsonl of any study shows it), while one burner or
    compiler takes half. On many CPUs one burner is a smaller share: there `other_cpu` wants to be
    less than one CPU's.
    """
    told = {
        "other_cpu": ("other work took {} of the CPUs", _per_cent),
        "stolen": ("the hypervisor took {} of the CPUs", _per_cent),
        "other_disk": ("other work moved {} on the model's disk", _mebibytes_a_second),
        "swapped_in": ("{} were swapped in", _mebibytes),
        "throttled": ("{} events of thermal throttling", "{:.0f}".format),
    }
    reasons = []
    for name, (words, unit) in told.items():
        value, limit = measures.get(name), getattr(limits, name)
        if value is not None and value > limit:
            reasons.append(f"{words.format(unit(value))} (limit {unit(limit)})")
    return "; ".join(reasons)


def judged(run: Run, settings: QuietSettings) -> Run:
    """Return a run with what others did meanwhile and, where that is too much, its mark.

    An ok run becomes disturbed, and its figures stay in the record; under `quiet: warn` it stays ok
    and has a note that begins with NOTE. Runs of another outcome keep it. Swapping is not judged
    where the engine's own memory was swapped or may have been.
    """
    if "before" not in run.machine or "after" not in run.machine:
        return run
    before, after = run.machine["before"], run.machine["after"]
    measures = disturbance(
        before,
        after,
        wall_s=after["monotonic_s"] - before["monotonic_s"],
        own_cpu_s=after["own_cpu_s"] - before["own_cpu_s"],
        own_read_bytes=run.io.read_bytes,
        cpus=run.host.get("logical_cpus"),
    )
    if run.memory.swap_at_peak_bytes != 0:
        measures["swapped_in"] = None
    changes: dict[str, Any] = {"disturbance": measures}
    reason = disturbed(measures, settings.quiet_limits)
    if reason and run.status == "ok":
        if settings.only_warns:
            changes["notes"] = [*run.notes, f"{NOTE}{reason}"]
        else:
            changes |= {"status": "disturbed", "reason": reason}
    return run.model_copy(update=changes)


def wait_until_quiet(model: Path, limits: QuietLimits, purpose: str) -> None:
    """Wait until a sample of SAMPLE_S shows no more other work than the limits allow.

    What waits to be written (a set-up, a download, a build) is written first (sync(2)), since the
    kernel would else write it during the runs. Raises ColdbenchError, naming the busiest processes,
    where it takes longer than `wait` to be quiet.
    """
    os.sync()
    deadline = time.monotonic() + limits.wait
    said = False
    while True:
        last = time.monotonic() + SAMPLE_S > deadline
        used = _used_s() if last else {}
        reason = disturbed(_sample(model), limits)
        if not reason:
            return
        if last:
            busiest = _busiest(used)
            raise ColdbenchError(
                f"the machine was not quiet within {limits.wait:g} s: {reason}; "
                + (f"busiest: {', '.join(busiest)}; end them, " if busiest else "try later, ")
                + "or measure with a mark on every row: --config quiet=warn"
            )
        if not said:
            said = True
            log.info("%s: waiting for the machine to be quiet: %s", purpose, reason)


def _sample(model: Path) -> dict[str, float | None]:
    before = host_state(model)
    time.sleep(SAMPLE_S)
    after = host_state(model)
    return disturbance(
        before,
        after,
        wall_s=after["monotonic_s"] - before["monotonic_s"],
        own_cpu_s=after["own_cpu_s"] - before["own_cpu_s"],
        own_read_bytes=0,
        cpus=os.cpu_count(),
    )


def _used_s() -> dict[tuple[int, float], float]:
    """Return the CPU time of every other process by pid and start.

    With that of the children it has waited for: a build's compilers come and go, make stays.
    """
    used = {}
    for process in psutil.process_iter(["pid", "create_time", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None and process.info["pid"] != os.getpid():
            key = (process.info["pid"], process.info["create_time"])
            used[key] = sum(times[:4])  # user, system, children's user and system
    return used


def _busiest(before: Mapping[tuple[int, float], float]) -> list[str]:
    """Name the processes that used most CPU since `before`, with their share of one CPU."""
    after = _used_s()
    spent = {key: total - before.get(key, 0.0) for key, total in after.items()}
    found = []
    for pid, started in sorted(spent, key=spent.__getitem__, reverse=True)[:_MOST_NAMED]:
        # A child's whole life is added when it is waited for, also what it did before.
        share = min(spent[pid, started] / SAMPLE_S, os.cpu_count() or 1)
        try:
            name = psutil.Process(pid).name()
        except psutil.Error:
            continue
        if share >= 0.01:
            found.append(f"{name} (pid {pid}, {_per_cent(share)} of a CPU)")
    return found


def _per_cent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _mebibytes_a_second(size: float) -> str:
    return f"{_mebibytes(size)}/s"
