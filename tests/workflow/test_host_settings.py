"""Arms under other host settings than the machine's own, through the whole workflow."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coldbench.measure.host import read_ahead_file

from .conftest import Checkout, program

ALONE = [{"name": "own", "build": "stub"}]
# A mount namespace of its own: nobody else sees what is mounted.
APART = ["unshare", "--mount", "--propagation", "private"]


def study_of(checkout: Checkout, toy: dict[str, Any], ahead: Path) -> dict[str, Any]:
    """Return a study whose figure is what the engine itself sees in `ahead`."""
    program(checkout.folder / "engine" / "tell", f'#!/bin/sh\necho "ahead: $(cat {ahead})"\n')
    study = toy | {
        "workloads": {
            "bench": {
                "driver": "command",
                "program": "tell",
                "metrics": {"ahead": {"regex": r"ahead: (\d+)", "unit": "KiB"}},
            }
        },
        "arms": [
            {"name": "own", "build": "stub"},
            *(
                {"name": f"kb{value}", "build": "stub", "host": {"read_ahead_kb": value}}
                for value in (64, 4096)
            ),
        ],
        "blocks": {"cold": 2},
    }
    for key in ("comparisons", "identity"):
        del study[key]
    return study


def settable(checkout: Checkout) -> Path:
    ahead = read_ahead_file(checkout.folder / "toy.gguf")
    if ahead is None or not os.access(ahead, os.W_OK):
        pytest.skip("this user may not set this machine's read_ahead_kb")
    return ahead.resolve()


def test_each_arm_runs_under_its_own_settings(checkout: Checkout, toy: dict[str, Any]) -> None:
    ahead = settable(checkout)
    machine = ahead.read_text()
    name = checkout.study(study_of(checkout, toy, ahead))
    refused = checkout.run("--config", name, fails=True)
    assert "allow it with --config set_host=true" in refused
    assert "Traceback" not in refused
    assert not checkout.results.exists()

    try:
        checkout.run("--config", name, "set_host=true")
        assert ahead.read_text() == machine
    finally:
        ahead.write_text(machine)
    seen = {(run["arm"], run["metrics"]["ahead"]) for run in checkout.records()}
    own = float(machine)
    assert seen == {("own", own), ("own-again", own), ("kb64", 64.0), ("kb4096", 4096.0)}
    settings = {run["arm"]: run["settings"] for run in checkout.records()}
    assert settings["kb64"] == {"read_ahead_kb": 64}
    assert settings["own"] == {}
    text = (checkout.results / "toy" / "matrix.md").read_text()
    assert f"**read_ahead_kb {machine.strip()} (set for some arms: 64, 4096)**" in text
    assert not list(Path(checkout.environment["COLDBENCH_LOCK"]).parent.glob("*.settings.json"))


def test_where_sys_is_read_only_the_other_arms_are_measured(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    ahead = settable(checkout)
    machine = ahead.read_text()
    name = checkout.study(study_of(checkout, toy, ahead))
    file = shlex.quote(str(ahead))
    locked = f"mount --bind {file} {file} && mount -o remount,bind,ro {file}"
    apart = [*APART, "sh", "-c"]
    if subprocess.run([*apart, locked], capture_output=True).returncode:
        pytest.skip("this user may not mount")
    command = shlex.join(checkout.command("--config", name, "set_host=true"))
    done = subprocess.run(
        [*apart, f"{locked} && exec {command}"],
        cwd=checkout.folder,
        env=checkout.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    # All is measured and published that could be; then the workflow tells of what is missing.
    assert done.returncode == 1
    assert "2 cells incomplete" in done.stdout + done.stderr
    assert (checkout.results / "toy" / "matrix.md").exists()
    assert ahead.read_text() == machine
    seen = {(run["arm"], run["status"]) for run in checkout.records()}
    assert seen == {
        *(("own", "ok"), ("own-again", "ok")),
        *(("kb64", "refused"), ("kb4096", "refused")),
    }
    reasons = {run["reason"] for run in checkout.records() if run["arm"] == "kb64"}
    (reason,) = reasons
    assert f"{ahead}: cannot be set to 64: Read-only file system" in reason


def test_what_a_run_that_was_killed_left_is_put_back_before_anything_is_measured(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    ahead = settable(checkout)
    machine = ahead.read_text()
    name = checkout.study(
        study_of(checkout, toy, ahead) | {"arms": [{"name": "own", "build": "stub"}]}
    )
    journal = Path(checkout.environment["COLDBENCH_LOCK"]).with_suffix(".settings.json")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    journal.write_text(json.dumps({"boot": boot, "files": {str(ahead): machine.strip()}}))
    try:
        ahead.write_text("128")
        output = checkout.run("--config", name)
        assert ahead.read_text() == machine
    finally:
        ahead.write_text(machine)
        journal.unlink(missing_ok=True)
    assert f"{ahead}: set back to {machine.strip()}" in output
    assert {run["metrics"]["ahead"] for run in checkout.records()} == {float(machine)}


def test_a_machine_that_cannot_be_put_back_is_measured_no_further(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    ahead = settable(checkout)
    machine = ahead.read_text()
    study = study_of(checkout, toy, ahead)
    # The engine makes the file read-only for its own mount namespace, the workflow's.
    program(
        checkout.folder / "engine" / "tell",
        f'#!/bin/sh\necho "ahead: $(cat {ahead})"\n'
        f'[ "$(cat {ahead})" != 64 ] || {{ mount --bind {ahead} {ahead} && '
        f"mount -o remount,bind,ro {ahead}; }}\n",
    )
    study["arms"] = [{"name": "kb64", "build": "stub", "host": {"read_ahead_kb": 64}}]
    name = checkout.study(study)
    command = [*APART, *checkout.command("--config", name, "set_host=true")]
    if subprocess.run([*APART, "mount", "--bind", ahead, ahead], capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        done = subprocess.run(
            command,
            cwd=checkout.folder,
            env=checkout.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        output = done.stdout + done.stderr
        assert done.returncode != 0
        assert f"{ahead}: could not be put back to {machine.strip()}" in output
        assert "Traceback" not in output
        assert checkout.records() == []
        assert ahead.read_text().strip() == "64"  # and the journal still knows what it was
        checkout.run(
            "--config", checkout.study(study | {"arms": [{"name": "own", "build": "stub"}]})
        )
        assert ahead.read_text() == machine
    finally:
        ahead.write_text(machine)
