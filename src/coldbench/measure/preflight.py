"""What is wrong with a run before it starts: told at once, with the reason, instead of measured."""

import os
import subprocess
from functools import cache
from pathlib import Path

from coldbench.drivers.flags import check_tensor_overrides, known_flags, unknown_flags
from coldbench.drivers.registry import driver_for
from coldbench.measure.journal import PlannedRun
from coldbench.sources.header import read_model
from coldbench.study.schema import Command, Workload

HELP_TIME_LIMIT_S = 30

SYSTEM_CONFIG = Path("/etc/llama.cpp/config.ini")
"""llama.cpp reads it wherever its home is (common/arg.cpp): no environment hides it."""


def check(
    planned: PlannedRun, driven: Workload, environment: dict[str, str], model: Path
) -> tuple[str | None, list[str]]:
    """Return why a run must be refused (None: it need not), and notes that go with its row.

    `environment` is the engine's bare one, for asking a program for its help.
    """
    program = Path(planned.argv[0])
    if not os.access(program, os.X_OK) or not program.is_file():
        return f"build {planned.build} has no program {program.name}", []
    if isinstance(driven, Command):
        return None, []
    if SYSTEM_CONFIG.exists():
        return f"{SYSTEM_CONFIG} would change the engine's settings; move it away", []
    if planned.state == "cold" and (repetitions := driver_for(driven).repetitions(driven)) > 1:
        return (
            f"{repetitions} repetitions in one process: only the first is cold; "
            "use one and more blocks",
            [],
        )
    known = known_flags(_help(program, tuple(environment.items())))
    if unknown := unknown_flags(planned.argv[1:], known):
        return (
            f"build {planned.build} does not know {', '.join(unknown)}; leave it out there, or "
            "give that build's own flag under for_build",
            [],
        )
    errors, notes = check_tensor_overrides(planned.argv[1:], _tensor_names(model))
    return ("; ".join(errors) or None), notes


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
