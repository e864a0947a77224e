"""Real work beside real runs: waited for, marked, repeated; and no winner is called from it."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.quiet import wait_until_quiet
from coldbench.study.quiet import QuietLimits

from .conftest import Checkout
from .test_interrupted import engines, slow, wait_for

BURN = [sys.executable, "-c", "while True: pass"]
ELSE = "stolen: 99%, other_disk: 1TiB, swapped_in: 1TiB, throttled: 1000000000"


@contextmanager
def beside(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Let a command of its own process group run beside, and end all of it."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compile_loop(folder: Path) -> list[str]:
    """Return a command that compiles without end, each compilation a short-lived process."""
    source = folder / "busy.c"
    lines = (f"int f{n}(int x) {{ return x % {n + 2} + x / {n + 3}; }}" for n in range(2000))
    source.write_text("\n".join(lines))
    compiler = os.environ.get("CC", "cc")
    return ["sh", "-c", 'while :; do "$0" -O2 -c "$1" -o "$2"; done', compiler, str(source),
            str(folder / "busy.o")]  # fmt: skip


def told(checkout: Checkout) -> str:
    return (checkout.results / "toy" / "matrix.md").read_text().replace("\\", "")


def verdict(results: Path) -> str:
    with (results / "toy" / "verdicts.csv").open() as stream:
        (row,) = [row for row in csv.DictReader(stream) if row["comparison"] == "claim"]
        return row["verdict"]


@pytest.fixture
def slow_toy(toy: dict[str, Any]) -> dict[str, Any]:
    """Three cold blocks of half a second a run, one arm twice as fast as the other."""
    toy["blocks"] = {"cold": 3}
    return slow(toy, "0.4")


@pytest.fixture
def spare_cpus(tmp_path: Path) -> None:
    """Skip where other work takes the whole machine: no block would ever begin."""
    limits = QuietLimits.model_validate({
        "wait": "30s", "other_cpu": "60%", "stolen": "99%", "other_disk": "1TiB",
        "swapped_in": "1TiB", "throttled": 10**9,
    })  # fmt: skip
    try:
        wait_until_quiet(tmp_path, limits, "test")
    except ColdbenchError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("work", ["burner", "compiler"])
def test_on_a_busy_machine_runs_are_marked_and_no_winner_is_called(
    checkout: Checkout, slow_toy: dict[str, Any], tmp_path: Path, work: str
) -> None:
    study = checkout.study(slow_toy)
    limits = f"quiet_limits={{other_cpu: 5%, {ELSE}}}"
    with beside(BURN if work == "burner" else compile_loop(tmp_path)):
        checkout.run("--config", study, "quiet=warn", limits)
    marked = checkout.records()
    assert len(marked) == 9
    assert {record["status"] for record in marked} == {"ok"}
    for record in marked:
        assert record["notes"][-1].startswith("disturbed: other work took ")
        # One of the CPUs, all the time.
        cpus = os.cpu_count() or 1
        assert 0.5 / cpus < record["disturbance"]["other_cpu"] <= 1
    for arm in ("plain", "again", "other"):
        assert any(arm in line and "disturbed: " in line for line in told(checkout).splitlines())
    assert verdict(checkout.results) == "inconclusive"

    # A finished block is not measured again because a setting changed.
    assert "Nothing to be done" in checkout.run("--config", study, "quiet=repeat", "--dry-run")

    # The same runs without marks have a winner.
    if work == "burner":
        checkout.run("--config", study, "results=calm")
        assert verdict(checkout.folder / "calm") == "faster"


def test_a_machine_that_is_never_quiet_is_a_clear_stop(
    checkout: Checkout, slow_toy: dict[str, Any]
) -> None:
    study = checkout.study(slow_toy)
    limits = f"quiet_limits={{wait: 2s, other_cpu: 5%, {ELSE}}}"
    with beside(BURN) as burner:
        output = checkout.run("--config", study, "quiet=repeat", limits, fails=True)
    assert "the machine was not quiet within 2 s: other work took " in output
    assert f"(pid {burner.pid}, " in output
    assert "or measure with a mark on every row: --config quiet=warn" in output
    assert "Traceback" not in output
    assert checkout.records() == []


@pytest.mark.usefixtures("spare_cpus")
def test_a_disturbed_block_is_measured_again_whole_and_a_killed_repeat_is_finished(
    checkout: Checkout, slow_toy: dict[str, Any]
) -> None:
    slow_toy["blocks"] = {"cold": 1}
    study = checkout.study(slow_toy)
    # All CPUs are burnt and most is allowed, so that other work here does not decide the test.
    settings = ("quiet=repeat", f"quiet_limits={{wait: 2min, other_cpu: 80%, {ELSE}}}")
    process = checkout.start("--config", study, *settings)
    with ExitStack() as stack:
        wait_for(lambda: bool(engines(checkout)))
        for _ in range(2 * (os.cpu_count() or 1)):
            stack.enter_context(beside(BURN))
        wait_for(lambda: len(checkout.records()) == 3)
    first = checkout.records()
    assert "disturbed" in {record["status"] for record in first}
    for record in first:
        if record["status"] == "disturbed":
            assert record["reason"].startswith("other work took ")
            assert record["metrics"]["prompt_tps"] > 0

    wait_for(lambda: len(checkout.records()) == 4, 120)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not engines(checkout), 15)
    # The limits may change under way.
    checkout.run("--config", study, "quiet=repeat", "quiet_limits={repeats: 1}")

    records = checkout.records()
    assert records[:3] == first
    assert [record["pass"] for record in records] == [1] * 3 + [2] * 3
    assert {record["status"] for record in records[4:]} == {"ok"}
    assert Counter(record["arm"] for record in records) == {"plain": 2, "again": 2, "other": 2}
    assert len({record["run"] for record in records}) == 6
    assert [entry["run"] for entry in checkout.manifest()] == [run["run"] for run in records]


@pytest.mark.usefixtures("spare_cpus")
def test_a_block_is_not_measured_again_for_ever(
    checkout: Checkout, slow_toy: dict[str, Any]
) -> None:
    slow_toy["blocks"] = {"cold": 1}
    slow_toy["arms"] = [{"name": "one", "build": "stub"}, {"name": "two", "aa_of": "one"}]
    slow_toy["comparisons"] = {}
    # The program leaves the work beside it to another process, as a daemon would: not its own.
    engine = checkout.folder / "engine" / "llama-batched-bench"
    engine.rename(engine.with_name("honest"))
    engine.write_text('#!/bin/sh\nmkdir "$ASK"\nsleep 0.5\nexec "$(dirname "$0")/honest" "$@"\n')
    engine.chmod(0o755)
    ask = checkout.folder / "ask"
    slow_toy["arms"][0]["environment"] = {"ASK": str(ask)}
    study = checkout.study(slow_toy)
    settings = (
        "quiet=repeat", f"quiet_limits={{wait: 2min, repeats: 1, other_cpu: 80%, {ELSE}}}"
    )  # fmt: skip
    process = checkout.start("--config", study, *settings)
    while process.poll() is None:
        if ask.exists():
            with ExitStack() as stack:
                for _ in range(2 * (os.cpu_count() or 1)):
                    stack.enter_context(beside(BURN))
                wait_for(lambda: not engines(checkout))
            ask.rmdir()
        time.sleep(0.02)
    output, _ = process.communicate()
    assert "Traceback" not in output
    records = checkout.records()
    assert [record["status"] for record in records] == ["disturbed"] * 4
    assert [record["pass"] for record in records] == [1, 1, 2, 2]
    assert "0 of 1 ok (disturbed)" in output
    # Nothing more is measured, whatever else is done.
    checkout.run("--config", study, *settings, fails=True)
    assert checkout.records() == records
