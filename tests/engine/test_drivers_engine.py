"""The drivers' command lines run on the real engine, and its output is read as a result."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from coldbench.drivers.base import Output
from coldbench.drivers.engine_log import read_log
from coldbench.drivers.flags import known_flags, unknown_flags
from coldbench.drivers.registry import driver_for
from coldbench.records import Exit
from coldbench.study.workloads import Workload

pytestmark = pytest.mark.engine

BATCHED = {
    "driver": "llama-batched-bench",
    "args": ["-npp", "32", "-ntg", "8", "-npl", "1", "-c", "256", "-t", "2"],
}
BENCH = {"driver": "llama-bench", "args": ["-p", "32", "-n", "8", "-t", "2"]}
COMPLETION = {
    "driver": "llama-completion",
    "prompt": "Once upon a time\\n, in a town",
    "tokens": 24,
    "args": ["-c", "256", "-t", "2"],
}
# the engine does not flush its log at exit: a result may be missing, which makes it void
ATTEMPTS = 5


def workload(keys: dict[str, Any]) -> Any:
    return TypeAdapter(Workload).validate_python(keys)


def run_once(argv: list[str]) -> Output:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")
    }
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=300,
        env=environment | {"GGML_NO_BACKTRACE": "1"},
    )
    end = Exit(ended="exit", code=done.returncode)
    return Output(end, done.stdout, done.stderr.decode("utf-8", "replace"))


def measure(keys, binaries: Path, model: Path, arm_args=()):
    work = workload(keys)
    driver = driver_for(work)
    argv = driver.argv(work, str(binaries / driver.program(work)), str(model), list(arm_args))
    for _ in range(ATTEMPTS):
        result = driver.read(work, run_once(argv))
        if result.status != "void":
            return result
    raise AssertionError(f"{ATTEMPTS} runs without a result: {result.reason}")


@pytest.mark.parametrize("keys", [BATCHED, BENCH, COMPLETION], ids=lambda keys: keys["driver"])
def test_the_engine_runs_each_driver_s_command_line(llama_binaries, smollm, keys):
    args = ["--load-mode", "none"]
    result = measure(keys, llama_binaries, smollm, args)
    assert (result.status, result.reason) == ("ok", "")
    assert set(result.metrics) == {"prompt_tps", "generation_tps"}
    assert all(0.1 < value < 1e6 for value in result.metrics.values())
    work = workload(keys)
    driver = driver_for(work)
    program = str(llama_binaries / driver.program(work))
    probe = driver.probe(work, program, str(smollm), args)
    assert (probe is None) == (keys is not BENCH)
    logged, _ = ({}, []) if probe is None else read_log(run_once(probe).stderr)
    effective = {**result.effective, **logged}
    assert effective["load_mode"] == "none"
    assert effective["lazy"] == "off"
    assert "CPU" in effective["buffers"]
    assert effective["threads"] == 2


@pytest.mark.parametrize("keys", [BATCHED, BENCH, COMPLETION], ids=lambda keys: keys["driver"])
def test_the_engine_s_help_lists_the_flags_of_the_command_line(llama_binaries, smollm, keys):
    work = workload(keys)
    driver = driver_for(work)
    program = str(llama_binaries / driver.program(work))
    known = known_flags(run_once([program, "--help"]).stdout.decode())
    argv = driver.argv(work, program, str(smollm), ["-lzm", "on", "-ngl", "-1"])
    assert unknown_flags(argv[1:], known) == []
    assert unknown_flags([*argv[1:], "--no-such-flag"], known) == ["--no-such-flag"]


def test_the_text_is_alone_whole_and_the_same_again(llama_binaries, smollm):
    first = measure(COMPLETION, llama_binaries, smollm)
    second = measure(COMPLETION, llama_binaries, smollm, ["--load-mode", "mmap"])
    other = measure(COMPLETION | {"prompt": "A recipe for soup"}, llama_binaries, smollm)
    assert first.tokens == second.tokens == other.tokens == 24
    assert first.text == second.text
    assert other.text != first.text
    assert b"llama" not in first.text


def test_a_prompt_of_one_token_and_a_single_new_token_are_counted_right(llama_binaries, smollm):
    short = COMPLETION | {"prompt": "Once"}
    assert measure(short | {"tokens": 16}, llama_binaries, smollm).tokens == 16
    # one token is degenerate as a text, but its count must be right all the same
    assert measure(short | {"tokens": 1}, llama_binaries, smollm).tokens == 1


def test_samples_of_repetitions_are_averaged(llama_binaries, smollm):
    keys = BENCH | {"args": [*BENCH["args"], "-r", "2"]}
    result = measure(keys, llama_binaries, smollm)
    assert result.status == "ok"
    assert [len(row["samples_ns"]) for row in result.rows] == [2, 2]


def test_a_test_that_the_context_cannot_hold_is_no_result(llama_binaries, smollm):
    work = workload(BATCHED | {"args": ["-npp", "600", "-ntg", "8", "-npl", "1", "-c", "64"]})
    driver = driver_for(work)
    argv = driver.argv(work, str(llama_binaries / driver.program(work)), str(smollm), [])
    result = driver.read(work, run_once(argv))
    assert result.status == "void"
    assert "needs 608 tokens" in result.reason


def test_overridden_tensors_show_at_log_level_5(llama_binaries, smollm):
    keys = BATCHED | {"args": [*BATCHED["args"], "-lv", "5"]}
    result = measure(keys, llama_binaries, smollm, ["-ot", r"blk\.0\.ffn=CPU"])
    assert result.effective["overrides"] == 4


@pytest.mark.parametrize("keys", [BATCHED, BENCH, COMPLETION], ids=lambda keys: keys["driver"])
def test_a_refused_flag_fails_with_the_engine_s_words(llama_binaries, smollm, keys):
    work = workload(keys)
    driver = driver_for(work)
    program = str(llama_binaries / driver.program(work))
    result = driver.read(work, run_once(driver.argv(work, program, str(smollm), ["--no-such"])))
    assert result.status == "failed"
    assert "exit status 1: error:" in result.reason
    assert "--no-such" in result.reason
