"""Engines, users and disks that misbehave while the real workflow runs."""

import mmap
import os
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest

from coldbench.measure.hierarchy import find_hierarchy

from .conftest import Checkout

HOSTILE = """\
#!/bin/sh
for word; do
    [ "$previous" = -m ] && model=$word
    previous=$word
done
[ -e "$HOME/left" ] && exit 9
: > "$HOME/left"
case "$DO" in
    kill-launcher) [ -e "$FLAG" ] || { : > "$FLAG"; kill -9 $PPID; sleep 60; } ;;
    always) kill -9 $PPID; sleep 60 ;;
    home) rm -r "$HOME"; : > "$HOME" ;;
    model) printf x >> "$model" ;;
    build) printf x >> "$(dirname "$0")/honest" ;;
esac
exec "$(dirname "$0")/honest" "$@"
"""


def groups_work() -> bool:
    """Say whether runs here have control groups, by which all that they started is found."""
    return os.geteuid() == 0 and find_hierarchy() is not None


def hostile(checkout: Checkout, toy: dict[str, Any], **environment: str) -> str:
    program = checkout.folder / "engine" / "llama-batched-bench"
    program.rename(program.with_name("honest"))
    program.write_text(HOSTILE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    toy["arms"][2]["environment"] = environment
    toy["blocks"] = {"cold": 1}
    return checkout.study(toy)


def test_a_killed_launcher_loses_an_attempt_and_not_the_run(
    checkout: Checkout, toy: dict[str, Any], tmp_path: Path
) -> None:
    study = hostile(checkout, toy, DO="kill-launcher", FLAG=str(tmp_path / "flag"))
    checkout.run("--config", study)
    statuses = [run["status"] for run in checkout.records() if run["arm"] == "other"]
    assert statuses.count("void") == 1
    assert statuses[-1] == "ok" or statuses.count("ok") == len(statuses) - 1
    (void,) = [run for run in checkout.records() if run["status"] == "void"]
    assert "launcher was killed by signal 9" in void["reason"]


def test_an_arm_that_always_kills_its_launcher_harms_only_itself(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    checkout.run("--config", hostile(checkout, toy, DO="always"), fails=True)
    measured = [run for run in checkout.records() if run["state"] == "cold"]
    assert [run["status"] for run in measured if run["arm"] == "other"] == ["void"] * 3
    assert {run["status"] for run in measured if run["arm"] != "other"} == {"ok"}


def test_what_an_arm_leaves_in_its_home_never_reaches_the_next(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    checkout.run("--config", hostile(checkout, toy, DO="home"))
    assert {run["status"] for run in checkout.records()} == {"ok"}


def test_a_run_that_changes_the_model_is_not_recorded(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    output = checkout.run("--config", hostile(checkout, toy, DO="model"), fails=True)
    assert "toy.gguf: changed since it was hashed" in output
    assert "Traceback" not in output
    assert not [run for run in checkout.records() if run["arm"] == "other" and run["block"]]


def test_a_run_that_changes_its_build_gives_no_table(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    output = checkout.run("--config", hostile(checkout, toy, DO="build"), fails=True)
    assert "the cache was changed: run the workflow again" in output
    assert "Traceback" not in output
    assert not (checkout.results / "toy" / "matrix.md").exists()
    assert not [run for run in checkout.records() if run["arm"] == "other" and run["block"]]


def test_children_of_a_killed_launcher_are_gone_before_the_next_run(
    checkout: Checkout, toy: dict[str, Any], tmp_path: Path
) -> None:
    study = hostile(checkout, toy, DO="kill-launcher", FLAG=str(tmp_path / "flag"))
    program = checkout.folder / "engine" / "llama-batched-bench"
    # A child in a session of its own, which no signal to the engine's group reaches.
    dies = "kill -9 $PPID; sleep 60; }"
    program.write_text(program.read_text().replace(dies, f"setsid sleep 7331 & {dies}"))
    checkout.run("--config", study)
    lines = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    left = lines.count(["sleep", "7331"])
    assert not left or not groups_work()


def test_a_state_that_lost_blocks_and_a_new_arm_leave_nothing_incomplete(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    toy["blocks"] = {"cold": 2, "warm": 2}
    checkout.run("--config", checkout.study(toy))
    toy["blocks"] = {"cold": 1, "warm": 2}
    toy["arms"].append({"name": "new", "build": "stub", "environment": {"STUB_SPEED": "3"}})
    checkout.run("--config", checkout.study(toy))
    assert checkout.table()["new"]["cold_runs_ok"] == "1"
    assert checkout.table()["plain"]["cold_runs"] == "1"


def test_what_refused_a_run_can_be_mended_and_the_run_made(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    toy["blocks"] = {"cold": 1}
    study = checkout.study(toy)
    with (checkout.folder / "toy.gguf").open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert held[:4] == b"GGUF", "a page that is mapped in cannot be evicted"
        checkout.run("--config", study, fails=True)
    held.close()
    refused = [run for run in checkout.records() if run["state"] == "cold"]
    assert {run["status"] for run in refused} == {"not cold"}
    assert all(f"process {os.getpid()} " in run["reason"] for run in refused)
    recorded = checkout.records()
    output = checkout.run("--config", study, fails=True)
    assert "3 cells incomplete" in output
    assert "snakemake --cores all --forcerun block" in output
    assert checkout.records() == recorded, "a finished block is left alone"
    checkout.run("--config", study, "--forcerun", "block")
    cold = [run for run in checkout.records() if run["state"] == "cold"]
    assert cold[: len(refused)] == refused
    assert [run["status"] for run in cold[len(refused) :]] == ["ok"] * len(refused)


def test_new_permissions_of_a_model_measure_nothing_again(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    study = checkout.study(toy)
    checkout.run("--config", study)
    kept = checkout.records()
    (checkout.folder / "toy.gguf").chmod(0o640)
    toy["blocks"]["warm"] = 2
    checkout.run("--config", checkout.study(toy))
    assert all(record in checkout.records() for record in kept)
    assert len(checkout.records()) == len(kept) + 3


def test_a_journal_that_lost_runs_gives_no_table(checkout: Checkout, toy: dict[str, Any]) -> None:
    study = checkout.study(toy)
    checkout.run("--config", study)
    journal = checkout.results / "toy" / "raw" / "toy" / "bench" / "block-001.jsonl"
    os.truncate(journal, 0)
    output = checkout.run("--config", study, "--forcerun", "matrix", fails=True)
    assert "block-001.jsonl: lacks run 001.1.001" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("receipt", ["blocks/toy/bench/001.json", "models/toy.json"])
def test_a_record_of_another_form_is_named(
    checkout: Checkout, toy: dict[str, Any], receipt: str
) -> None:
    study = checkout.study(toy)
    checkout.run("--config", study)
    (checkout.results / "toy" / receipt).write_text("{}")
    output = checkout.run("--config", study, fails=True)
    assert f"{receipt}: unreadable (it has no " in output
    assert "Traceback" not in output
