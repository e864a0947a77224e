"""Whether a run had the treatment that its arm names: seen, not believed.

Three sources say what must be seen: the command line (`drivers.effects`), the build's record (the
files loaded as code) and the study file (`expect`).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldbench.drivers.base import excerpt
from coldbench.drivers.effects import Check, Traces, effects
from coldbench.drivers.engine_log import EngineLog
from coldbench.drivers.gemma_effects import gemma_effects
from coldbench.records import Run
from coldbench.study.specs import Arm
from coldbench.study.treatment import Observed, within
from coldbench.study.workloads import Gather, GemmaCpp, Stream, Workload

ANY = "*"
"""The value of a setting that a study leaves open."""

_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Printed:
    """The two streams of one process."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class Delivery:
    """What had to be seen and whether it was; `reason` names what was not, empty if all was.

    `effective` holds the settings in force as all logs show them, the probe's among them.
    """

    delivered: dict[str, bool] = field(default_factory=dict)
    reason: str = ""
    effective: dict[str, Any] = field(default_factory=dict)


def check(
    arm: Arm,
    driven: Workload,
    record: Run,
    *,
    build: dict[str, Any],
    model: dict[str, Any],
    measured: Printed,
    probe: Printed | None,
) -> Delivery:
    """Judge a run that is otherwise ok; of any other, nothing is judged.

    `record` is complete but for its delivery, `build` and `model` are the records of `sources`,
    `probe` is what the driver's probe printed (None where it asks for none).
    """
    if record.status != "ok":
        return Delivery(effective=record.effective)
    checks = list(_loaded(record, build))
    logs = [EngineLog(each.stderr) for each in (measured, probe) if each is not None]
    if driven.llama_cpp:
        traces = Traces(
            run=record,
            log=logs[0],
            probe=logs[1] if probe is not None else None,
            model_bytes=model["bytes"],
        )
        checks += effects(record.argv[1:], traces)
    elif isinstance(driven, GemmaCpp):
        checks += gemma_effects(record.argv[1:], record, model["bytes"])
    elif isinstance(driven, Gather | Stream):
        checks += _hinted(record.effective)
    text = "\n".join(
        stream
        for each in (measured, probe)
        if each is not None
        for stream in (each.stderr, each.stdout)
    )
    effective = dict(record.effective)
    if driven.llama_cpp:
        # a log shows what is in force; what the tool's rows echo gives way to it
        for log in reversed(logs):
            effective |= log.settings()
    declared = arm.expect.in_state(record.state)
    checks = [one for one in checks if one.setting not in declared.effective]
    checks += _declared(declared, record, text, effective)
    missing = [one for one in checks if not one.ok]
    delivered: dict[str, bool] = {}
    for one in checks:
        delivered[one.what] = delivered.get(one.what, True) and one.ok
    return Delivery(
        delivered,
        "; ".join(f"{one.what}: expected {one.expected}, seen {one.seen}" for one in missing),
        effective,
    )


def _loaded(record: Run, build: dict[str, Any]) -> Iterator[Check]:
    """Check that code came from the build: its program, and its libraries where one is loaded."""
    if record.loaded is None:
        return
    own: dict[str, set[str]] = {}
    for file in (*build["programs"].values(), *build["libraries"].values()):
        own.setdefault(Path(file["path"]).name, set()).add(os.path.realpath(file["path"]))
    for path in record.loaded:
        wanted = own.get(Path(path).name)
        if wanted is not None and path not in wanted:
            yield Check("loaded files", False, " or ".join(sorted(wanted)), path)
    program = Path(os.path.realpath(record.argv[0]))
    if _is_elf(program):  # of a script, its interpreter is loaded
        seen = ", ".join(record.loaded) or "no file"
        yield Check("loaded files", str(program) in record.loaded, str(program), seen)


def _hinted(said: dict[str, Any]) -> Iterator[Check]:
    """Check that the kernel took each hint that one of our kernels gave it."""
    if (given := said.get("hints")) or said.get("hint_errors"):
        failed = said.get("hint_errors", 0)
        seen = f"{failed} of {given} refused ({said.get('hint_error')})" if failed else "all taken"
        yield Check("hints", not failed, "advice that the kernel takes", seen)


def _is_elf(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def _declared(
    wanted: Observed, record: Run, text: str, effective: dict[str, Any]
) -> Iterator[Check]:
    for pattern in wanted.log:
        found = re.search(pattern, text, re.MULTILINE)
        yield Check(f"log {pattern}", found is not None, "a line that matches", "none")
    for pattern in wanted.no_log:
        found = re.search(pattern, text, re.MULTILINE)
        seen = excerpt(found[0]) if found else "none"
        yield Check(f"no log {pattern}", found is None, "no line that matches", seen)
    for name, value in wanted.effective.items():
        seen = _words(effective.get(name))
        yield Check(f"effective {name}", value in {seen, ANY}, value, seen)
    buffers = [str(name) for name in effective.get("buffers", {})]
    for name in wanted.buffers:
        yield Check(f"buffer {name}", name in buffers, name, ", ".join(buffers) or "no buffer")
    for quantity, bound in wanted.bounds.items():
        figure = _quantity(record, quantity)
        kept = figure is not None and within(quantity, bound, figure)
        yield Check(f"bound {quantity}", kept, bound, _figure(quantity, figure))


def _quantity(record: Run, quantity: str) -> float | None:
    if quantity == "table_residency":
        table, total = record.after.table_bytes, record.table_total_bytes
        return table / total if table is not None and total else None
    source = record.io if hasattr(record.io, quantity) else record.memory
    value: float | None = getattr(source, quantity)
    return value


def _figure(quantity: str, value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.2%}" if quantity == "table_residency" else f"{value:,.0f}"


def _words(value: Any) -> str:
    """Return a setting as a study file writes it; lazily read tensors are `on`."""
    if value is None:
        return "n/a"
    if isinstance(value, bool | list):
        return "on" if value else "off"
    return str(value)
