"""Measuring has the machine alone; builds share it; a killed holder holds nothing."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.common.locks import keep_alone, machine, machine_lock_path

HOLD = """
import sys, time
from coldbench.common.locks import machine
with machine(alone=sys.argv[1] == "alone", purpose="test"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
    print("released", time.monotonic(), flush=True)
"""


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "lock"))


def holder(mode: str, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, mode, str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(("first", "alone"), [("alone", True), ("alone", False), ("shared", True)])
def test_one_waits_for_the_other(first: str, alone: bool) -> None:
    process = holder(first, 0.5)
    with machine(alone=alone, purpose="test"):
        taken = time.monotonic()
    output, _ = process.communicate()
    assert taken >= float(output.split()[1]) - 0.05


def test_builds_share_the_machine() -> None:
    process = holder("shared", 30)
    with machine(alone=False, purpose="test"):
        assert process.poll() is None
    process.kill()
    process.communicate()


def test_a_killed_holder_holds_nothing() -> None:
    process = holder("alone", 60)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with machine(alone=True, purpose="test"):
        pass


def test_a_results_folder_has_one_workflow(tmp_path: Path) -> None:
    keep_alone(tmp_path / "results")
    with pytest.raises(ColdbenchError, match="another workflow is working here"):
        keep_alone(tmp_path / "results")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_results_of_another_user_are_refused_though_their_lock_is_everybodys(
    tmp_path: Path,
) -> None:
    results = tmp_path / "results"
    keep_alone(results)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != folder.parent and "pytest" in folder.name:
            folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            keep_alone(results)
        except ColdbenchError as error:
            os._exit(0 if "results cannot be written here" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("", "another coldbench job"),
        ("4194305 a killed job", "another coldbench job"),  # more than a pid can be (proc(5))
        ("not a number at all", "another coldbench job"),
        (f"{os.getpid()} toy:\nblock", f"toy: block (process {os.getpid()})"),
    ],
)
def test_only_a_live_holder_is_named(
    told: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    process = holder("shared", 1)
    machine_lock_path().write_text(told)
    with machine(alone=True, purpose="test"):
        assert f"test: waiting for {said} on this machine" in caplog.text
    process.communicate()


def test_a_full_disk_costs_only_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setenv("COLDBENCH_LOCK", "/dev/full")
    with machine(alone=True, purpose="test"):
        pass


def test_who_waits_says_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def later() -> None:
        with machine(alone=False, purpose="a build"):
            pass

    with machine(alone=True, purpose="toy: block-001"):
        waiting = threading.Thread(target=later)
        waiting.start()
        until = time.monotonic() + 30
        while "a build: waiting for" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.02)
    waiting.join(30)
    assert f"a build: waiting for toy: block-001 (process {os.getpid()}) on this" in caplog.text
    assert machine_lock_path().read_text() == ""
