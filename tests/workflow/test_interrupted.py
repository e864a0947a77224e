"""Killed, started twice, or in an odd folder: nothing is lost, doubled or overlapped."""

import itertools
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import Checkout


def slow(toy: dict[str, Any], seconds: str) -> dict[str, Any]:
    for arm in toy["arms"]:
        if "aa_of" not in arm:
            arm["environment"] = {**arm.get("environment", {}), "STUB": "slow"}
            arm["environment"]["STUB_SECONDS"] = seconds
    del toy["identity"], toy["workloads"]["text"]
    return toy


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def engines(checkout: Checkout) -> list[int]:
    marker = str(checkout.folder / "toy.gguf")
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if marker in (process.info["cmdline"] or [])
    ]


@pytest.mark.parametrize("whole_group", [True, False], ids=["every process", "snakemake alone"])
def test_the_same_command_resumes_after_kill_9(
    checkout: Checkout, toy: dict[str, Any], whole_group: bool
) -> None:
    study = checkout.study(slow(toy, "0.7"))
    process = checkout.start("--config", study)
    wait_for(lambda: len(checkout.records()) >= 2)
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
    kept = checkout.records()
    manifest = checkout.manifest()
    wait_for(lambda: not engines(checkout), 15)

    checkout.run("--config", study)
    records = checkout.records()
    assert all(record in records for record in kept)
    assert all(entry in checkout.manifest() for entry in manifest)
    counts = Counter((record["block"], record["run"]) for record in records)
    assert counts == Counter((entry["block"], entry["run"]) for entry in checkout.manifest())
    assert set(counts.values()) == {1}
    assert len(counts) == 9
    scratch = Path(checkout.environment["COLDBENCH_CACHE"], "scratch")
    assert [path.name for path in scratch.iterdir()] == [".lock"]  # of the killed ones nothing
    assert {record["status"] for record in records} == {"ok"}


def test_measuring_jobs_never_overlap_whatever_the_command_line(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    one = checkout.study(slow(toy, "0.2"), "one")
    two = checkout.study(toy, "two")
    commands = [
        ("--config", one, "--max-threads", "1", "--cores", "4", "--profile", "none"),
        ("--config", two, "--max-threads", "1", "--cores", "4"),
    ]
    processes = [checkout.start(*command) for command in commands]
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
    spans = sorted(
        (start, start + timedelta(seconds=record["exit"]["wall_s"]))
        for record in checkout.records("one") + checkout.records("two")
        for start in [datetime.fromisoformat(record["started"])]
    )
    assert len(spans) == 18
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start >= end - timedelta(milliseconds=2)


def test_a_second_workflow_in_the_same_results_is_refused(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    study = checkout.study(slow(toy, "1"))
    process = checkout.start("--config", study)
    wait_for(lambda: bool(checkout.manifest()))
    output = checkout.run("--config", study, fails=True)
    assert "another workflow is working here" in output
    assert "Traceback" not in output
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert not engines(checkout)


@pytest.mark.parametrize("name", ["with space", "it's a $dir", 'quo"te'])
def test_odd_folder_names_work(
    checkout_called: Callable[[str], Checkout], toy: dict[str, Any], name: str
) -> None:
    checkout = checkout_called(name)
    (checkout.folder / "toy.gguf").rename(checkout.folder / "-a b's.gguf")
    toy["models"]["toy"]["source"]["path"] = "-a b's.gguf"
    toy["blocks"] = {"cold": 1}
    checkout.run("--config", checkout.study(toy))
    assert {record["status"] for record in checkout.records()} == {"ok"}


def test_nothing_of_another_study_is_merged_in(checkout: Checkout, toy: dict[str, Any]) -> None:
    toy["arms"] = [{"name": "only", "build": "stub"}]
    toy["comparisons"] = {}
    study = checkout.study(toy)
    output = checkout.run("--config", study, "--dry-run")
    assert "demo" not in output
    plan = subprocess.run(
        [checkout.command()[0].replace("snakemake", "coldbench"), "plan", "toy"],
        cwd=checkout.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "only" in plan
    assert "gemma4" not in plan


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("study=12e4567", "quote it"),
        ("study=dmeo", "did you mean demo?"),
        ("stduy=demo", "did you mean study?"),
        ("study=absent.yaml", "no such study file"),
    ],
)
def test_a_wrong_setting_is_one_clear_message(
    checkout: Checkout, setting: str, expected: str
) -> None:
    output = checkout.run("--config", setting, "--dry-run", fails=True)
    assert expected in output
    assert "Traceback" not in output
