"""What must be seen of a llama.cpp command line when it is in force.

The engine's echo of a request is no proof, so wherever the kernel counted something that tells,
that is checked too: memory locked (VmLck), anonymous against file memory, pages left in the cache.
Amounts are judged only where they stand out from the process's own memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coldbench.drivers.base import RPC
from coldbench.drivers.engine_log import EngineLog
from coldbench.drivers.requested import Requested, requested
from coldbench.records import Run

TELLING_BYTES = 16 * 2**20
"""What stands out from a process's own memory."""

_MIB = 2**20
_MAPPED = "_Mapped"


@dataclass(frozen=True)
class Check:
    """One thing that had to be seen of a treatment, what it was seen as, and whether it was so.

    `setting` is the setting whose value alone it checks: a study that declares another value
    (`expect: {effective: {lazy: off}}`) knows better what the flag comes to.
    """

    what: str
    ok: bool
    expected: str
    seen: str
    setting: str = ""


@dataclass(frozen=True)
class Traces:
    """What a run left: its record, its log, and the log of its unmeasured probe (None: no probe).

    `model_bytes` is the size of all files of the model.
    """

    run: Run
    log: EngineLog
    probe: EngineLog | None
    model_bytes: int

    @property
    def loading(self) -> EngineLog:
        """Return the log that shows the loading of the model: the run's own, else its probe's."""
        return self.log if self.log.told or self.probe is None else self.probe

    @property
    def logs(self) -> list[EngineLog]:
        """Return the logs there are."""
        return [log for log in (self.log, self.probe) if log is not None]

    @property
    def in_memory_bytes(self) -> float:
        """Return the size of the host buffers that are no mapping of the file."""
        return _MIB * sum(
            size
            for name, size in self.loading.buffers.items()
            if name.startswith("CPU") and not name.endswith(_MAPPED)
        )

    @property
    def mapped_bytes(self) -> float:
        """Return the size of the host buffers that map the file: spans, not residency."""
        return _MIB * self.loading.buffers.get(f"CPU{_MAPPED}", 0.0)

    @property
    def table_bytes(self) -> int:
        """Return the size of the table, 0 where the model has none."""
        return self.run.table_total_bytes or 0

    @property
    def whole(self) -> bool:
        """Return whether memory can hold all that the engine wants to keep there."""
        return fits(self.run, self.model_bytes)


def fits(run: Run, model_bytes: int) -> bool:
    """Return whether memory can hold all that an engine wants to keep there of a model."""
    total = run.host.get("memory_bytes")
    return run.memory.budget_bytes is None and (total is None or 2 * model_bytes < total)


def at_least(what: str, words: str, wanted: float, seen: int | None) -> Iterator[Check]:
    """Check that so many bytes were seen, where they were counted."""
    if seen is not None:
        yield Check(what, seen >= wanted, f"{words} of at least {_size(wanted)}", _size(seen))


def below(what: str, words: str, limit: float, seen: int | None) -> Iterator[Check]:
    """Check that fewer bytes were seen, where they were counted."""
    if seen is not None:
        yield Check(what, seen < limit, f"less than {_size(limit)} {words}", _size(seen))


def effects(args: Sequence[str], traces: Traces) -> list[Check]:
    """Check what `args` (the workload's, then the arm's) ask for against what the run left.

    What nothing was recorded of is not judged.
    """
    asked = requested(args)
    return [
        *_lazy(asked, traces),
        *_load_mode(asked, traces),
        *_locked(asked, traces),
        *_direct(asked, traces),
        *_offloaded(asked, traces),
        *_threads(asked, traces),
        *_overridden(asked, traces),
        *_advice(traces),
    ]


def _lazy(asked: Requested, traces: Traces) -> Iterator[Check]:
    lazy = sorted({name for log in traces.logs for name in log.lazy})
    seen = f"{', '.join(lazy)} read lazily" if lazy else _nothing(traces, "no tensor read lazily")
    table, memory = traces.table_bytes, traces.run.memory
    if asked.lazy == "off":
        told = traces.loading.told and not lazy
        yield Check("lazy off", told, "no tensor read lazily", seen, "lazy")
        resident = memory.peak_rss_bytes
        here = not asked.overrides and asked.layers in {None, "0"} and traces.whole
        if table >= TELLING_BYTES and here and resident is not None:
            yield Check(
                "table in memory",
                resident > table / 2,
                f"peak RSS above half of the table's {_size(table)}",
                _size(resident),
            )
    elif asked.lazy is not None:
        if asked.lazy == "auto" and not lazy:
            seen += " (auto leaves tensors up to 4 GiB as off does)"
        yield Check(f"lazy {asked.lazy}", bool(lazy), "a tensor read lazily", seen, "lazy")
        locked = memory.peak_locked_bytes
        if lazy and table >= TELLING_BYTES and locked:
            limit = traces.model_bytes - table / 2
            yield Check(
                "lazy table not locked",
                locked < limit,
                f"less than {_size(limit)} locked: all but the table",
                _size(locked),
                "lazy",
            )


def _load_mode(asked: Requested, traces: Traces) -> Iterator[Check]:
    if asked.load_mode is None:
        return
    what = f"load mode {asked.load_mode}"
    log, memory = traces.loading, traces.run.memory
    mapped = asked.load_mode.startswith("mmap")
    if log.mode is not None:
        shown = _without_lock(log.mode) == _without_lock(asked.load_mode)
        yield Check(what, shown, asked.load_mode, log.mode)
    buffers = ", ".join(log.buffers) or _nothing(traces, "no buffer")
    maps = any(name.endswith(_MAPPED) for name in log.buffers)
    holds = any(not name.endswith(_MAPPED) for name in log.buffers)
    if mapped:
        yield Check("mapped buffer", maps, "a buffer that maps the file", buffers)
        file = memory.file_at_peak_bytes
        if not log.lazy and traces.whole and traces.mapped_bytes >= TELLING_BYTES:
            yield from at_least("mapped memory", "file memory", traces.mapped_bytes / 4, file)
    else:
        # a lazily read table is mapped whatever the load mode
        own = log.told and (holds if log.lazy else not maps)
        yield Check("buffer in memory", own, "a buffer that does not map the file", buffers)
        if traces.in_memory_bytes >= TELLING_BYTES:
            held = _sum(memory.anon_at_peak_bytes, memory.swap_at_peak_bytes)
            yield from at_least(
                "memory of its own", "anonymous memory", traces.in_memory_bytes / 2, held
            )


def _locked(asked: Requested, traces: Traces) -> Iterator[Check]:
    if asked.load_mode is None or "mlock" not in asked.load_mode:
        return
    refused = not all(log.locked for log in traces.logs)
    locked = traces.run.memory.peak_locked_bytes
    # buffers of other kinds, such as CPU_REPACK, are not locked
    body = _MIB * traces.loading.buffers.get("CPU", 0.0) + traces.mapped_bytes
    if traces.loading.lazy:
        body -= traces.table_bytes
    wanted = body / 2 if body >= TELLING_BYTES else 1
    if refused:
        seen = "a warning that locking failed"
        yield Check("locked memory", False, "no warning of a lock that failed", seen)
    elif locked is not None:
        yield from at_least("locked memory", "locked memory (VmLck)", wanted, locked)


def _direct(asked: Requested, traces: Traces) -> Iterator[Check]:
    if asked.load_mode != "dio":
        return
    fell_back = not all(log.direct for log in traces.logs)
    seen = "the engine fell back to buffered reads" if fell_back else "no fall-back"
    yield Check("direct reads", not fell_back, "no fall-back", seen)
    run = traces.run
    body = traces.model_bytes - traces.table_bytes
    if run.state == "cold" and run.after.files and body >= 4 * TELLING_BYTES:
        left = run.after.total_bytes - (run.after.table_bytes or 0)
        yield Check(
            "nothing left cached",
            left < body / 2,
            f"less than {_size(body / 2)} of the model in the page cache after the run",
            _size(left),
        )


def _offloaded(asked: Requested, traces: Traces) -> Iterator[Check]:
    if asked.layers is None or not re.fullmatch(r"\d+|all", asked.layers, re.ASCII):
        return  # the engine may choose
    shown = traces.loading.offloaded
    count = int(shown.partition("/")[0][:9]) if shown else 0
    most = int(shown.partition("/")[2][:9]) if shown else 0
    wanted = most if asked.layers == "all" else min(int(asked.layers[:9]), most)
    if asked.layers == "0":
        yield Check("no layer offloaded", count == 0, "0 layers offloaded", str(shown))
    else:
        seen = f"{shown} layers" if shown else _nothing(traces, "no layer offloaded")
        if any(log.no_gpu for log in traces.logs):
            seen = "no usable GPU found, the flag is ignored"
        ok = 0 < count == wanted
        yield Check("offloaded layers", ok, f"{asked.layers} layers offloaded (or all)", seen)


def _threads(asked: Requested, traces: Traces) -> Iterator[Check]:
    seen = traces.run.effective.get("threads", traces.loading.threads)
    if asked.threads is not None and seen is not None:
        yield Check("threads", seen == asked.threads, str(asked.threads), str(seen))


def _overridden(asked: Requested, traces: Traces) -> Iterator[Check]:
    deep = [log for log in traces.logs if log.deep]
    if not deep:
        return
    moved = {name: buffer for log in deep for name, buffer in log.overridden.items()}
    lazy = {name for log in traces.logs for name in log.lazy}
    for pattern, wanted in asked.overrides:
        try:
            hits = {buffer for name, buffer in moved.items() if re.search(pattern, name)}
            held = [name for name in lazy if re.search(pattern, name)]
        except re.error:
            continue  # POSIX classes, which only the engine reads
        # what goes to the CPU may go to a buffer of its own kind there, such as CPU_REPACK
        kind = wanted.removesuffix(f"[{RPC}]")
        ok = any(buffer.startswith(kind) for buffer in hits)
        seen = ", ".join(sorted(hits)) or "no tensor overridden"
        if not hits and held:
            seen += f" ({', '.join(sorted(held))} is read lazily and stays where it is)"
        expected = f"tensors overridden to {wanted}"
        yield Check(f"-ot {pattern}", ok, expected, seen, "overrides")


def _advice(traces: Traces) -> Iterator[Check]:
    refused = [call for log in traces.logs for call in log.refused_advice]
    if refused or any(log.lazy for log in traces.logs):
        seen = "; ".join(dict.fromkeys(refused)) or "none refused"
        yield Check("madvise", not refused, "advice that the kernel takes", seen)


def _nothing(traces: Traces, words: str) -> str:
    return words if traces.loading.told else "a log that does not show the loading of a model"


def _without_lock(mode: str) -> str:
    return {"mlock": "none", "mmap+mlock": "mmap"}.get(mode, mode)


def _sum(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _size(size: float) -> str:
    return f"{size / _MIB:,.1f} MiB" if size >= _MIB else f"{size:.0f} bytes"
