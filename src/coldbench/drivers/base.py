"""What a driver is, and how it tells a result from no result, a wrong one and a failure."""

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from coldbench.common.text import visible
from coldbench.records import Exit
from coldbench.study.workloads import Workload

_EXCERPT = 200

RPC_SERVER = "ggml-rpc-server"
RPC = "{rpc}"
"""In arguments: the address of the RPC server that is started beside the engine."""

# No study's text has a NUL, so nothing that a user wrote is taken for these.
FEED = "\0feed"
"""In a driver's command line: the file that a workload is fed beside the model."""

OUT = "\0out"
"""In a driver's command line: the file that a program writes to what it computed."""


@dataclass(frozen=True)
class Mark:
    """A text whose first appearance on a stream is timed from outside."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True)
class Output:
    """What a finished process left: how it ended and its two streams.

    `memlock_limit_bytes` is the limit (RLIMIT_MEMLOCK) it ran under, None where unknown or
    unlimited. `marked_s` are the times of the driver's marks, in seconds since the exec, None for
    what never appeared. `written` is the file that OUT stands for, which need not be there.
    """

    exit: Exit
    stdout: bytes
    stderr: str
    memlock_limit_bytes: int | None = None
    marked_s: Mapping[str, float | None] = field(default_factory=dict)
    written: Path | None = None


@dataclass(frozen=True)
class Result:
    """What a driver read out of an output.

    `metrics` holds finite, positive figures under their names (`prompt_tps`, `generation_tps` in
    tokens/s, `load_s` apart). `effective` holds the settings in force as the engine's own log
    shows them. `rows` keeps the tool's raw rows, `text` the generated text alone, `digest` the MD5
    (hex) of an output that is no text.
    """

    status: Literal["ok", "failed", "invalid", "void", "refused"]
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    load_s: float | None = None
    effective: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    text: bytes | None = None
    digest: str | None = None
    tokens: int | None = None


class UnusableError(Exception):
    """Raised inside a driver: the process ended well, its output is no result or a wrong one."""

    def __init__(self, status: Literal["invalid", "void"], reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


W_contra = TypeVar("W_contra", bound=Workload, contravariant=True)


class Driver(Protocol[W_contra]):
    """One engine tool."""

    def program(self, workload: W_contra) -> str:
        """Return the program's file name."""

    def check(self, workload: W_contra, arm_args: Sequence[str] = ()) -> None:
        """Refuse what this driver cannot measure in one process.

        Raises ColdbenchError naming the flag.
        """

    def argv(
        self, workload: W_contra, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str]:
        """Return the whole command line: the driver's flags, the workload's, then the arm's.

        The user's arguments stand in it exactly as written. Raises ColdbenchError as `check`.
        """

    def probe(
        self, workload: W_contra, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return the command line of a short unmeasured run that logs what is in force.

        None where the measured run logs it all: its own log level shows it and costs no time.
        """

    def repetitions(self, workload: W_contra) -> int:
        """Return how many passes one process averages: more than 1 has no cold state."""

    def read(self, workload: W_contra, output: Output) -> Result:
        """Read an output; never raises, whatever the bytes."""


def failure(workload: Workload, output: Output) -> str:
    """Return in words why the process failed; empty where it ended by itself with status 0."""
    end = output.exit
    match end.ended:
        case "not started":
            return f"not started: {end.detail or 'unknown reason'}"
        case "time limit":
            return f"did not exit: time limit {workload.time_limit:g} s"
        case "output limit":
            return f"did not exit: output limit {workload.output_limit / 2**20:g} MiB"
        case "signal":
            return _with_error(_signal_words(end.signal or 0), output.stderr)
        case "exit" if end.code == 0:
            return ""
    code = end.code if end.code is not None else -1
    # a wrapper script reports its child's signal as 128 + number
    if 128 < code <= 128 + signal.SIGRTMAX:
        return _with_error(f"{_signal_words(code - 128)} (exit status {code})", output.stderr)
    return _with_error(f"exit status {code}", output.stderr)


def _signal_words(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"killed by signal {number}"
    if name == "SIGILL":
        return "SIGILL: illegal instruction: binary built for another CPU?"
    if name == "SIGKILL":
        return "killed (SIGKILL): out of memory?"
    return f"killed by {name} ({(signal.strsignal(number) or 'unknown').lower()})"


_ERROR_LINE = re.compile(r"\berror\b|terminate called|GGML_ASSERT|fatal", re.IGNORECASE)


def _with_error(reason: str, stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines()]
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    return f"{reason}: {excerpt(errors[-1])}" if errors else reason


def excerpt(text: str) -> str:
    """Return the first line of `text`, printable and cut to a readable length."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    printable = visible(first)
    return printable if len(printable) <= _EXCERPT else printable[:_EXCERPT] + "..."


def figure(value: Any, name: str) -> float:
    """Return `value` as the finite, positive figure it must be.

    Raises UnusableError (invalid) naming it otherwise.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UnusableError("invalid", f"{name} is not a finite number: {excerpt(repr(value))}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UnusableError("invalid", f"{name} is not a finite number")
    if number <= 0:
        raise UnusableError("invalid", f"{name} is {number:g}: a figure must be above 0")
    return number


def essential(row: dict[str, Any], key: str) -> Any:
    """Return the value under `key`. Raises UnusableError (invalid) naming the key where missing."""
    if key not in row:
        raise UnusableError("invalid", f"missing key {key} in the tool's JSON")
    return row[key]


def refuse_damaged(rows: list[dict[str, Any]], damaged: bool) -> None:
    """Raise UnusableError (invalid) where a tool's JSON is cut off or broken."""
    if damaged:
        raise UnusableError("invalid", f"partial: JSON cut off after {len(rows)} whole rows")
