"""What is wrong with a run before it starts: told at once, with the reason, instead of measured."""

import difflib
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from mmap import ACCESS_READ
from mmap import mmap as mapped
from pathlib import Path

from coldbench.drivers.flags import check_tensor_overrides, known_flags, unknown_flags
from coldbench.drivers.intent import resolve_intent
from coldbench.drivers.registry import driver_for
from coldbench.measure.journal import PlannedRun
from coldbench.sources.header import read_model
from coldbench.study.specs import Arm
from coldbench.study.workloads import Workload

HELP_TIME_LIMIT_S = 30
_ENGINE_VARIABLE = re.compile(r"(?:LLAMA|GGML)_\w+", re.ASCII)
_VARIABLE_BYTES = re.compile(rb"(?<![A-Za-z0-9_])(?:LLAMA|GGML)_[A-Z0-9_]+(?![a-z(])")

SYSTEM_CONFIG = Path("/etc/llama.cpp/config.ini")
"""llama.cpp reads it wherever its home is (common/arg.cpp): no environment hides it."""


def check(
    planned: PlannedRun, arm: Arm, driven: Workload, environment: dict[str, str], model: Path
) -> tuple[str | None, list[str]]:
    """Return why a run must be refused (None: it need not), and notes that go with its row.

    `environment` is the engine's bare one, for asking a program for its help.
    """
    program = Path(planned.argv[0])
    if not os.access(program, os.X_OK) or not program.is_file():
        return f"build {planned.build} has no program {program.name}", []
    _, refused, remarks = resolved(arm, driven, program, environment)
    if refused or not driven.llama_cpp:
        return refused, remarks
    if SYSTEM_CONFIG.exists():
        return f"{SYSTEM_CONFIG} would change the engine's settings; move it away", []
    if planned.state == "cold" and (repetitions := driver_for(driven).repetitions(driven)) > 1:
        return (
            f"{repetitions} repetitions in one process: only the first is cold; "
            "use one and more blocks",
            [],
        )
    known = help_flags(program, environment)
    if unknown := unknown_flags(planned.argv[1:], known):
        return (
            f"build {planned.build} does not know {', '.join(unknown)}; leave it out there, or "
            "give that build's own flag under for_build",
            [],
        )
    own = [name for name in planned.environment if name not in environment]
    if reason := _unknown_variable(planned.build, own, program.parent):
        return reason, []
    errors, notes = check_tensor_overrides(planned.argv[1:], _tensor_names(model))
    return ("; ".join(errors) or None), [*remarks, *notes]


def help_flags(program: Path, environment: Mapping[str, str]) -> dict[str, bool]:
    """Return the flags that a program's --help lists and whether each needs a value.

    Empty where it is missing or has no such help. `environment` is the engine's bare one.
    """
    return known_flags(_help(program, tuple(environment.items())))


def resolved(
    arm: Arm, driven: Workload, program: Path, environment: Mapping[str, str]
) -> tuple[list[str], str | None, list[str]]:
    """Return an arm's arguments with its intent in the build's flags, a refusal, and notes.

    The refusal is None unless the build cannot express the intent; then the arguments lack it.
    """
    if not arm.intent.given:
        return list(arm.args), None, []
    if not driven.llama_cpp:
        settings = ", ".join(f"{name}: {value}" for name, value in arm.intent.given.items())
        return list(arm.args), f"{driven.driver} takes no intent ({settings}); use args", []
    found = resolve_intent(arm.intent, help_flags(program, environment))
    reason = (
        f"build {arm.build} has no flag for {', '.join(found.unknown)} in the --help of "
        f"{program.name}; leave it out there, or write the build's own flag under for_build"
        if found.unknown
        else None
    )
    return [*arm.args, *found.args], reason, found.notes


def _unknown_variable(build: str, names: Iterable[str], folder: Path) -> str | None:
    known = _variables(folder)
    for name in names:
        if not _ENGINE_VARIABLE.fullmatch(name) or not known or _is_read(name, known):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"build {build} reads no environment variable {name}{hint}"
    return None


def _is_read(name: str, known: Collection[str]) -> bool:
    # common/arg.cpp composes the negative name while it runs
    return {name, name.replace("LLAMA_ARG_NO_", "LLAMA_ARG_")} & {*known} != set()


@cache
def _variables(folder: Path) -> frozenset[str]:
    """Return the words in a build's files that look like environment variables of an engine."""
    found: set[bytes] = set()
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file, mapped(file.fileno(), 0, access=ACCESS_READ) as data:
                found.update(_VARIABLE_BYTES.findall(data))
    return frozenset(name.decode() for name in found)


@cache
def _tensor_names(model: Path) -> tuple[str, ...]:
    return tuple(read_model(model).tensors)


@cache
def _help(program: Path, environment: tuple[tuple[str, str], ...]) -> str:
    # A program that has no help, or waits instead of printing it, only loses this check.
    try:
        done = subprocess.run(
            [program, "--help"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=HELP_TIME_LIMIT_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return ""
    return done.stdout.decode(errors="replace")
