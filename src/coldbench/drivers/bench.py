"""llama-bench: rows of JSON with the samples of its passes.

Its figures are computed here from the samples: the tool's own deviation comes from a formula that
loses its digits (tools/llama-bench/llama-bench.cpp). It prints a row for every combination of the
values its flags are given.
"""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.arguments import (
    MODEL_FLAGS,
    count,
    given,
    refuse,
    refuse_owned,
    spelling,
    values,
)
from coldbench.drivers.base import (
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
from coldbench.study.workloads import Bench

_OWNED = MODEL_FLAGS | {"-o", "--output", "-v", "--verbose"}
_PROMPT = ("-p", "--n-prompt")
_GENERATED = ("-n", "--n-gen")
_DEPTH = ("-d", "--n-depth")
_REPETITIONS = ("-r", "--repetitions")
_MIXED = ("-pg",)
_NO_WARMUP = "--no-warmup"
_WORK_FLAGS = frozenset({*_PROMPT, *_GENERATED, *_DEPTH, *_REPETITIONS, *_MIXED, _NO_WARMUP})
_COUNTS = {*_PROMPT, *_GENERATED, *_DEPTH, *_REPETITIONS}
_DEFAULT_PROMPT = 512
_DEFAULT_GENERATED = 128
_SWEPT = (
    ("-b", "--batch-size"),
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-dev", "--device"),
    ("-t", "--threads"),
    ("-C", "--cpu-mask"),
    ("--cpu-strict",),
    ("--poll",),
    ("-ngl", "--n-gpu-layers"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-sm", "--split-mode"),
    ("-lm", "--load-mode"),
    ("-mmp", "--mmap"),
    ("-dio", "--direct-io"),
    ("-lzm", "--lazy-mode"),
    ("-mg", "--main-gpu"),
    ("-nkvo", "--no-kv-offload"),
    ("-fa", "--flash-attn"),
    ("-embd", "--embeddings"),
    ("-nopo", "--no-op-offload"),
    ("--no-host",),
    ("--repack",),
    ("-ts", "--tensor-split"),
    ("-ot", "--override-tensor"),
    ("-fitt", "--fit-target"),
    ("-fitc", "--fit-ctx"),
)
"""Flags whose several values multiply the tests, and so do several occurrences."""

_RANGE = re.compile(r"\d+-\d+\S*", re.ASCII)
_MEAN_TOLERANCE = 0.01
_DEVIATION_TOLERANCE = 0.05
_ROUNDING_NS = 2.0


@dataclass(frozen=True)
class _Test:
    """One of the tool's tests, in tokens."""

    prompt: int
    generated: int
    depth: int

    def __str__(self) -> str:
        name = f"pp{self.prompt}" if self.prompt else f"tg{self.generated}"
        return f"{name}@d{self.depth}" if self.depth else name

    @property
    def metric(self) -> str:
        return "prompt_tps" if self.prompt else "generation_tps"


def _tests(workload: Bench) -> list[_Test]:
    depth = count(workload.args, _DEPTH, 0)
    prompt = count(workload.args, _PROMPT, _DEFAULT_PROMPT)
    generated = count(workload.args, _GENERATED, _DEFAULT_GENERATED)
    tests = [_Test(prompt, 0, depth), _Test(0, generated, depth)]
    return [test for test in tests if test.prompt or test.generated]


class BenchDriver:
    """Drives llama-bench."""

    def program(self, workload: Bench) -> str:
        """Return the program's file name."""
        return workload.program or "llama-bench"

    def check(self, workload: Bench, arm_args: Sequence[str] = ()) -> None:
        """Raise ColdbenchError where the flags ask for more than one test of a kind, or none."""
        refuse_owned(workload.args, arm_args, _OWNED)
        refuse("arm", arm_args, _WORK_FLAGS, "an arm must not change the work; use a workload")
        refuse("workload", workload.args, _MIXED, "a mixed test has no rate of its own; use -p, -n")
        if not _tests(workload):
            raise ColdbenchError("workload args: -p, -n: nothing to measure")
        if self.repetitions(workload) == 0:
            raise ColdbenchError("workload args: -r: nothing to measure")
        args = [*workload.args, *arm_args]
        for flags in _SWEPT:
            found = values(args, flags)
            if len(found) > 1 or any("," in value or _RANGE.fullmatch(value) for value in found):
                raise ColdbenchError(
                    f"workload and arm args: {flags[0]} has several values ({' '.join(found)}); "
                    "one process makes one measurement, so make an arm of each"
                )

    def argv(self, workload: Bench, program: str, model: str, arm_args: Sequence[str]) -> list[str]:
        """Return the command line: one pass without a warm-up, unless the workload says else."""
        self.check(workload, arm_args)
        own = ["-o", "jsonl"]
        if not given(workload.args, _REPETITIONS):
            own += ["-r", "1"]
        if not given(workload.args, {_NO_WARMUP}):
            own.append(_NO_WARMUP)
        return [program, "-m", model, *own, *workload.args, *arm_args]

    def probe(
        self, workload: Bench, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return a verbose run of one token each.

        Without -v the tool logs nothing; with it the engine logs all there is, also while the
        passes are timed, so the measured runs do without.
        """
        args = workload.args
        kept = [
            arg
            for index, arg in enumerate(args)
            if not {spelling(each) for each in args[max(0, index - 1) : index + 1]} & _COUNTS
        ]
        short = workload.model_copy(update={"args": ("-p", "1", "-n", "1", *kept)})
        return [*self.argv(short, program, model, arm_args), "-v"]

    def repetitions(self, workload: Bench) -> int:
        """Return the passes that the process averages."""
        return count(workload.args, _REPETITIONS, 1)

    def read(self, workload: Bench, output: Output) -> Result:
        """Read an output; the load time is not known, since the tool's own holds its first pass."""
        rows, damaged = json_rows(output.stdout)
        effective, notes = read_log(output.stderr, output.memlock_limit_bytes)
        seen = Result("ok", effective=effective, notes=notes, rows=rows)
        if reason := failure(workload, output):
            return replace(seen, status="failed", reason=reason)
        tests = _tests(workload)
        try:
            refuse_damaged(rows, damaged)
            if not rows:
                raise UnusableError("void", _why_no_row(tests, output))
            found = _match(tests, rows)
            samples = self.repetitions(workload)
            metrics = {test.metric: _rate(test, row, samples, notes) for test, row in found.items()}
        except UnusableError as unusable:
            return replace(seen, status=unusable.status, reason=unusable.reason)
        _complete(effective, rows[0])
        return replace(seen, metrics=metrics)


def _names(tests: Sequence[_Test]) -> str:
    return "/".join(map(str, tests))


def _why_no_row(tests: list[_Test], output: Output) -> str:
    begin = excerpt(output.stdout.decode("utf-8", "replace"))
    shown = f"; stdout begins: {begin}" if begin else ""
    return f"no rows for {_names(tests)}: exit 0 without JSON rows{shown}"


def _match(tests: list[_Test], rows: list[dict[str, Any]]) -> dict[_Test, dict[str, Any]]:
    found: dict[_Test, dict[str, Any]] = {}
    for row in rows:
        shown = [essential(row, "n_prompt"), essential(row, "n_gen"), row.get("n_depth", 0)]
        test = next((test for test in tests if shown == [*vars(test).values()]), None)
        if test is None:
            raise UnusableError(
                "invalid", f"row of a test that was not asked for: {excerpt(str(shown))}"
            )
        if test in found:
            raise UnusableError("invalid", f"more than one row for {test}")
        found[test] = row
    if missing := [test for test in tests if test not in found]:
        raise UnusableError("invalid", f"no rows for {_names(missing)}")
    return found


def _rate(test: _Test, row: dict[str, Any], samples: int, notes: list[str]) -> float:
    """Return the mean rate of the samples in tokens/s, with a note on a deviation gone wrong."""
    printed = figure(essential(row, "avg_ts"), f"avg_ts of {test}")
    key = "samples_ns" if "samples_ns" in row else "samples_ts"
    listed = essential(row, key)
    if not isinstance(listed, list) or len(listed) != samples:
        shown = len(listed) if isinstance(listed, list) else excerpt(repr(listed))
        raise UnusableError("invalid", f"{key} of {test}: {shown} where {samples} were asked for")
    numbers = [figure(sample, f"{key} of {test}") for sample in listed]
    tokens = test.prompt + test.generated
    rates = [tokens * 1e9 / ns for ns in numbers] if key == "samples_ns" else numbers
    mean = figure(statistics.fmean(rates), f"mean of {key} of {test}")
    if abs(printed / mean - 1) > _MEAN_TOLERANCE:
        raise UnusableError(
            "invalid", f"avg_ts {printed:g} of {test} does not agree with its samples ({mean:g})"
        )
    own = row.get(key.replace("samples", "stddev"))
    if samples > 1 and own is not None:
        true = statistics.stdev(numbers)
        slack = _DEVIATION_TOLERANCE * true + (_ROUNDING_NS if key == "samples_ns" else 0.01 * mean)
        agrees = isinstance(own, int | float) and math.isfinite(own) and abs(own - true) <= slack
        if not agrees:
            notes.append(
                f"{test}: the tool's deviation {excerpt(str(own))} is not that of its samples "
                f"({true:.9g}); the samples are used"
            )
    return mean


def _complete(effective: dict[str, Any], row: dict[str, Any]) -> None:
    """Add what the rows say where the log is silent, in the newest spelling."""
    mode = row.get("load_mode")
    if mode is None and "use_mmap" in row:
        mode = "dio" if row.get("use_direct_io") is True else "mmap" if row["use_mmap"] else "none"
    if isinstance(mode, str) and mode != "auto":
        effective.setdefault("load_mode", mode)
    if type(threads := row.get("n_threads")) is int:
        effective.setdefault("threads", threads)
