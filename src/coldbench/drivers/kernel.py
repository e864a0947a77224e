"""Our own kernels, gather and stream (src/native/kernels): one JSON object on stdout.

They exit with 3 where this machine cannot do what is asked, with the reason in the object, and go
on when a hint to the kernel fails, counting it: an arm whose hints fail measures something else.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coldbench.drivers.arguments import listed, refuse_owned
from coldbench.drivers.base import (
    FEED,
    Output,
    Result,
    UnusableError,
    excerpt,
    failure,
    figure,
    refuse_damaged,
)
from coldbench.drivers.documents import json_rows
from coldbench.study.metrics import printed_by
from coldbench.study.workloads import Gather, Stream

_OWNED = listed("--model --feed")
_USAGE, _UNSUPPORTED = 2, 3
_MAY_BE_ZERO = {"hints", "overlap", "retained_bytes", "bytes_per_token"}


class KernelDriver:
    """Drives gather and stream."""

    def program(self, workload: Gather | Stream) -> str:
        """Return the program's file name."""
        return workload.program or workload.driver

    def check(self, workload: Gather | Stream, arm_args: Sequence[str] = ()) -> None:
        """Raise ColdbenchError where the user repeats a flag that the driver sets."""
        refuse_owned(workload.args, arm_args, _OWNED)

    def argv(
        self, workload: Gather | Stream, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str]:
        """Return the command line, in which FEED stands for the file that the kernel is fed."""
        self.check(workload, arm_args)
        return [program, "--model", model, "--feed", FEED, *workload.args, *arm_args]

    def probe(
        self, workload: Gather | Stream, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return None: a measured run says it all."""
        return None

    def repetitions(self, workload: Gather | Stream) -> int:
        """Return 1."""
        return 1

    def read(self, workload: Gather | Stream, output: Output) -> Result:
        """Read an output; the text is the checksum of all that was computed."""
        rows, damaged = json_rows(output.stdout)
        if reason := failure(workload, output):
            return _refused(output, rows) or Result("failed", _with_words(reason, output))
        try:
            refuse_damaged(rows, damaged)
            if len(rows) != 1:
                raise UnusableError("void", f"no result: exit 0 with {len(rows)} JSON objects")
            (row,) = rows
            seen = Result("ok", effective=_in_force(row), rows=rows)
            metrics = {
                name: _figure(row[name], name)
                for name in printed_by(workload.driver)
                if row.get(name) is not None
            }
            if not metrics:
                raise UnusableError("void", "no result: a JSON object without figures")
            text = row.get("checksum")
        except UnusableError as unusable:
            return Result(unusable.status, unusable.reason, rows=rows)
        return replace(seen, metrics=metrics, text=None if text is None else str(text).encode())


def _refused(output: Output, rows: list[dict[str, Any]]) -> Result | None:
    """Return a refusal; None where the kernel does not say why, which is a failure."""
    reason = ""
    if output.exit.ended == "exit" and output.exit.code == _UNSUPPORTED and rows:
        reason = excerpt(str(rows[0].get("unsupported", "")))
    elif output.exit.ended == "exit" and output.exit.code == _USAGE:
        reason = excerpt(output.stderr)
    return Result("refused", reason) if reason else None


def _with_words(reason: str, output: Output) -> str:
    said = excerpt(output.stderr)
    return f"{reason}: {said}" if said and said not in reason else reason


def _in_force(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the kernel says of itself beside its checksums.

    Its buffers are a number; an engine's `buffers` are by name.
    """
    return {
        {"buffers": "buffer_count"}.get(key, key): value
        for key, value in row.items()
        if value is not None and key not in {"checksum", "checksums"}
    }


def _figure(value: Any, name: str) -> float:
    if name in _MAY_BE_ZERO and value == 0 and value is not False:
        return 0.0
    return figure(value, name)
