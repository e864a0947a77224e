"""llama-batched-bench: one prompt and one generation pass, a JSON line on stdout.

The tool (tools/batched-bench/batched-bench.cpp) decodes 16 random tokens before its passes, skips
a test that its context cannot hold without a word, and exits without flushing its log, which
the JSON line is part of.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.arguments import (
    LOG_FLAGS,
    MODEL_FLAGS,
    RPC_FLAGS,
    count,
    deeper_level,
    given,
    log_level,
    refuse,
    refuse_owned,
    replaced,
)
from coldbench.drivers.base import (
    RPC,
    Output,
    Result,
    UnusableError,
    essential,
    excerpt,
    failure,
    figure,
    refuse_damaged,
)
from coldbench.drivers.documents import json_rows
from coldbench.drivers.engine_log import read_log
from coldbench.study.workloads import BatchedBench

_OWNED = MODEL_FLAGS | LOG_FLAGS | RPC_FLAGS | {"--output-format"}
_WORK_FLAGS = frozenset({"-npp", "-ntg", "-npl", "-pps", "-tgs"})
_CONTEXT = re.compile(r"llama_context: n_ctx\s+= (\d{1,12})\b")
_LOAD = re.compile(r"perf_context_print:\s+load time =\s+(\d{1,12}\.\d+) ms")
_SPEED_TOLERANCE = 0.01
_PRINTED_S = 1e-6


@dataclass(frozen=True)
class _Test:
    """What the workload's flags ask for: tokens a sequence, and sequences."""

    prompt: int
    generated: int
    sequences: int
    shared: bool

    @property
    def prompt_tokens(self) -> int:
        return self.prompt if self.shared else self.prompt * self.sequences

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.generated * self.sequences


def _test(workload: BatchedBench) -> _Test:
    args = workload.args
    return _Test(
        count(args, ["-npp"]),
        count(args, ["-ntg"]),
        count(args, ["-npl"]),
        bool(given(args, {"-pps"})),
    )


class BatchedBenchDriver:
    """Drives llama-batched-bench."""

    def program(self, workload: BatchedBench) -> str:
        """Return the program's file name."""
        return workload.program or "llama-batched-bench"

    def check(self, workload: BatchedBench, arm_args: Sequence[str] = ()) -> None:
        """Raise ColdbenchError where the flags ask for no test, or for more than one."""
        refuse_owned(workload.args, arm_args, _OWNED)
        refuse("arm", arm_args, _WORK_FLAGS, "an arm must not change the work; use a workload")
        log_level(workload.args, arm_args)
        test = _test(workload)
        if test.sequences == 0 or test.prompt + test.generated == 0:
            raise ColdbenchError("workload args: -npp, -ntg, -npl: nothing to measure")

    def argv(
        self, workload: BatchedBench, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str]:
        """Return the command line."""
        self.check(workload, arm_args)
        own = ["--output-format", "jsonl", *log_level(workload.args, arm_args)]
        # Before any tensor override, which may name its buffers.
        server = [] if workload.rpc is None else ["--rpc", RPC]
        return [program, "-m", model, *server, *own, *workload.args, *arm_args]

    def probe(
        self, workload: BatchedBench, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return a run of one token each at the level that shows overrides, where there are any."""
        if not (level := deeper_level([*workload.args, *arm_args])):
            return None
        args = replaced(workload.args, {"-npp", "-ntg"}, "1")
        short = workload.model_copy(update={"args": tuple(args)})
        return [*self.argv(short, program, model, arm_args), *level]

    def repetitions(self, workload: BatchedBench) -> int:
        """Return 1: the tool makes each test once."""
        return 1

    def read(self, workload: BatchedBench, output: Output) -> Result:
        """Read an output; `load_s` lasts until the 16 tokens before the test are decoded."""
        rows, damaged = json_rows(output.stdout)
        effective, notes = read_log(output.stderr, output.memlock_limit_bytes)
        seen = Result("ok", effective=effective, notes=notes, rows=rows)
        if reason := failure(workload, output):
            return replace(seen, status="failed", reason=reason)
        try:
            test = _test(workload)
            refuse_damaged(rows, damaged)
            if not rows:
                raise UnusableError("void", _why_no_row(test, output))
            metrics = _metrics(test, rows)
        except UnusableError as unusable:
            return replace(seen, status=unusable.status, reason=unusable.reason)
        if type(threads := rows[0].get("n_threads")) is int:
            effective.setdefault("threads", threads)
        load = _LOAD.search(output.stderr)
        return replace(
            seen,
            metrics=metrics,
            tokens=test.generated * test.sequences,
            load_s=float(load[1]) / 1e3 if load else None,
        )


def _why_no_row(test: _Test, output: Output) -> str:
    context = _CONTEXT.search(output.stderr)
    if context and int(context[1]) < test.context:
        return (
            f"no result: the test needs {test.context} tokens, the context holds {context[1]} "
            "and the engine skips it silently; raise -c"
        )
    reason = "no result: exit 0 without JSON (the engine does not flush its log at exit)"
    begin = excerpt(output.stdout.decode("utf-8", "replace"))
    return f"{reason}; stdout begins: {begin}" if begin else reason


def _metrics(test: _Test, rows: list[dict[str, Any]]) -> dict[str, float]:
    if len(rows) != 1:
        raise UnusableError("invalid", f"{len(rows)} rows where one test was asked for")
    row = rows[0]
    for key, asked in (("pp", test.prompt), ("tg", test.generated), ("pl", test.sequences)):
        if (shown := essential(row, key)) != asked:
            raise UnusableError("invalid", f"row of another test: {key} is {shown!r}, not {asked}")
    metrics = {}
    if test.prompt:
        metrics["prompt_tps"] = _speed(row, "pp", test.prompt_tokens)
    if test.generated:
        metrics["generation_tps"] = _speed(row, "tg", test.generated * test.sequences)
    return metrics


def _speed(row: dict[str, Any], phase: str, tokens: int) -> float:
    """Return the printed speed, which must be the tokens over the printed time."""
    speed = figure(essential(row, f"speed_{phase}"), f"speed_{phase}")
    seconds = figure(essential(row, f"t_{phase}"), f"t_{phase}")
    tolerance = _SPEED_TOLERANCE + _PRINTED_S / seconds
    if abs(speed * seconds / tokens - 1) > tolerance:
        raise UnusableError(
            "invalid",
            f"speed_{phase} {speed:g} does not agree with {tokens} tokens in {seconds:g} s",
        )
    return speed
