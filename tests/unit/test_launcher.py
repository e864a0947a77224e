import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from coldbench.measure.launcher import ENVIRONMENT_BYTES, Launched, environment_for, launch
from coldbench.measure.pagecache import evict

MIB = 2**20
Run = Callable[..., Launched]
T = TypeVar("T")


@pytest.fixture
def run(launcher: Path, tmp_path: Path) -> Run:
    def _run(
        *argv: str, time_limit_s: float = 60, output_limit_bytes: int = MIB, **more: Any
    ) -> Launched:
        return launch(
            launcher,
            argv,
            environment_for({}, tmp_path / "home"),
            stdout=tmp_path / "stdout",
            stderr=tmp_path / "stderr",
            time_limit_s=time_limit_s,
            output_limit_bytes=output_limit_bytes,
            **more,
        )

    return _run


def known(value: T | None) -> T:
    assert value is not None
    return value


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited for a minute in vain"
        time.sleep(0.02)


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


# --- how a program ends ---------------------------------------------------------------------------


def test_exit_code_and_both_streams_are_kept(run: Run, tmp_path: Path) -> None:
    done = run("/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.exit.ended, done.exit.code, done.exit.signal) == ("exit", 7, None)
    assert (tmp_path / "stdout").read_bytes() == b"out\n"
    assert (tmp_path / "stderr").read_bytes() == b"err\n"
    assert known(done.exit.wall_s) > 0


def test_illegal_instruction_is_a_signal_not_an_exit_code(run: Run) -> None:
    done = run("/bin/sh", "-c", "kill -ILL $$")
    assert (done.exit.ended, done.exit.code, done.exit.signal) == ("signal", None, 4)
    assert done.exit.detail == "Illegal instruction"


def test_a_program_that_cannot_be_executed_is_not_started(run: Run, tmp_path: Path) -> None:
    missing = run(str(tmp_path / "missing"))
    assert missing.exit.ended == "not started"
    assert missing.exit.detail == f"{tmp_path / 'missing'}: No such file or directory"
    assert missing.exit.code is None
    assert missing.memory.peak_rss_bytes is None
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert run(str(plain)).exit.detail == f"{plain}: Permission denied"
    shell = run("/bin/sh", "-c", "exit 127")
    assert (shell.exit.ended, shell.exit.code) == ("exit", 127)


def test_start_time_is_utc_with_microseconds(run: Run) -> None:
    before = time.time()
    started = run("/bin/true").started
    moment = datetime.fromisoformat(started)
    assert before - 1 < moment.timestamp() < time.time() + 1
    assert len(started) == len("2026-01-01T00:00:00.000000+00:00")
    assert started.endswith("+00:00")


def test_stdin_is_empty_and_no_other_file_is_open(run: Run, tmp_path: Path) -> None:
    assert run("/bin/cat").exit.code == 0
    with (tmp_path / "leak").open("w") as leak:
        os.set_inheritable(leak.fileno(), True)
        run("/bin/sh", "-c", "ls -l /proc/$$/fd")
    listing = (tmp_path / "stdout").read_text()
    assert "/dev/null" in listing
    assert "leak" not in listing
    assert listing.count("->") == 3, listing


def test_ignored_signals_and_masks_are_not_inherited(run: Run, tmp_path: Path) -> None:
    old = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        run("/bin/cat", "/proc/self/status")
    finally:
        signal.signal(signal.SIGPIPE, old)
    status = dict(line.split(":\t", 1) for line in (tmp_path / "stdout").read_text().splitlines())
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) == 0


def test_a_crash_leaves_no_core_file_and_affinity_is_set(run: Run, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    run("/bin/sh", "-c", "ulimit -c; grep Cpus_allowed_list /proc/$$/status", cpus=str(cpu))
    assert (tmp_path / "stdout").read_text().split() == ["0", "Cpus_allowed_list:", str(cpu)]
    assert run("/bin/true", cpus="3-1").exit.detail == "cpus: Invalid argument"


# --- limits and descendants -----------------------------------------------------------------------


def test_time_limit_kills_the_program_and_what_it_started(run: Run, tmp_path: Path) -> None:
    script = (
        f"setsid sleep 300 & echo $! > {tmp_path}/own_session; "
        f"sleep 300 & echo $! > {tmp_path}/same_group; wait"
    )
    done = run("/bin/sh", "-c", script, time_limit_s=0.5)
    assert (done.exit.ended, done.exit.signal) == ("time limit", 9)
    assert done.exit.detail == "did not end within 0.5 s"
    assert gone(pid_in(tmp_path / "own_session"))
    assert gone(pid_in(tmp_path / "same_group"))


def test_output_limit_stops_an_endless_log(run: Run, tmp_path: Path) -> None:
    done = run("/bin/sh", "-c", "while :; do echo chatter >&2; done", output_limit_bytes=10_000)
    assert (done.exit.ended, done.exit.signal) == ("output limit", 9)
    assert (tmp_path / "stderr").stat().st_size > 10_000


def test_a_daemon_does_not_outlive_the_program(run: Run, tmp_path: Path) -> None:
    pid_file = tmp_path / "daemon"
    daemon = (
        "import os, sys, time\n"
        "if os.fork(): sys.exit(3)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"open({str(pid_file)!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        "time.sleep(300)\n"
    )
    (tmp_path / "daemon.py").write_text(daemon)
    script = f"{sys.executable} {tmp_path}/daemon.py; while [ ! -s {pid_file} ]; do :; done; exit 4"
    done = run("/bin/sh", "-c", script)
    assert (done.exit.ended, done.exit.code) == ("exit", 4)
    assert gone(pid_in(pid_file))


CALLER = """
import signal
import sys
from pathlib import Path
from coldbench.measure.launcher import environment_for, launch
# Started in the background by a shell without job control, it would ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
launcher, folder, script = sys.argv[1:]
done = launch(Path(launcher), ["/bin/sh", "-c", script], environment_for({}, Path(folder)),
              stdout=Path(folder, "out"), stderr=Path(folder, "err"),
              time_limit_s=300, output_limit_bytes=10_000)
Path(folder, "done").write_text(done.exit.model_dump_json() + "\\n")
"""

PARENT_OF_CALLER = """
import subprocess, sys
group, *command = sys.argv[1:]
child = subprocess.Popen(command, process_group=None if group == "same" else 0)
child.wait()
"""


def caller(launcher: Path, folder: Path, script: str) -> list[str]:
    return [sys.executable, "-c", CALLER, str(launcher), str(folder), script]


def test_nothing_survives_kill_9_of_the_measuring_process(launcher: Path, tmp_path: Path) -> None:
    script = (
        f"setsid sleep 300 & echo $! > {tmp_path}/grandchild; echo $$ > {tmp_path}/program; wait"
    )
    with subprocess.Popen(caller(launcher, tmp_path, script)) as process:
        pids = [pid_in(tmp_path / name) for name in ("program", "grandchild")]
        assert not any(gone(pid) for pid in pids)
        process.kill()
    wait_until(lambda: all(gone(pid) for pid in pids))


def test_interrupting_the_measuring_process_stops_the_program(
    launcher: Path, tmp_path: Path
) -> None:
    script = f"echo $$ > {tmp_path}/program; exec sleep 300"
    with subprocess.Popen(caller(launcher, tmp_path, script), stderr=subprocess.DEVNULL) as process:
        pid = pid_in(tmp_path / "program")
        process.send_signal(signal.SIGINT)
        process.wait()
        assert gone(pid)
    assert not (tmp_path / "done").exists()


def test_a_run_ends_with_the_workflow_that_asked_for_it(launcher: Path, tmp_path: Path) -> None:
    script = f"echo $PPID > {tmp_path}/launcher; echo $$ > {tmp_path}/program; exec sleep 300"
    command = [sys.executable, "-c", PARENT_OF_CALLER, "same", *caller(launcher, tmp_path, script)]
    with subprocess.Popen(command, process_group=0) as workflow:
        pid = pid_in(tmp_path / "program")
        measuring = psutil.Process(pid_in(tmp_path / "launcher")).ppid()
        workflow.kill()
    wait_until(lambda: gone(pid) and gone(measuring))
    assert not (tmp_path / "done").exists()


def test_a_run_outlives_the_shell_that_a_job_was_started_from(
    launcher: Path, tmp_path: Path
) -> None:
    script = f"echo $$ > {tmp_path}/program; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    command = [sys.executable, "-c", PARENT_OF_CALLER, "own", *caller(launcher, tmp_path, script)]
    with subprocess.Popen(command, process_group=0) as shell:
        pid_in(tmp_path / "program")
        shell.kill()
    time.sleep(1.5)  # longer than the watch looks away
    (tmp_path / "go").touch()
    wait_until((tmp_path / "done").exists)
    wait_until(lambda: (tmp_path / "done").read_text().endswith("\n"))
    assert json.loads((tmp_path / "done").read_text())["code"] == 0


# --- what is measured -----------------------------------------------------------------------------

ALLOCATE = "import sys; held = bytearray(int(sys.argv[1])); held[::4096] = held[::4096]"


def test_peak_rss_is_what_the_program_allocates(run: Run) -> None:
    peaks = []
    for size in (0, 64 * MIB):
        done = run(sys.executable, "-c", ALLOCATE, str(size))
        assert done.exit.code == 0
        peaks.append(known(done.memory.peak_rss_bytes))
    assert peaks[1] - peaks[0] == pytest.approx(64 * MIB, abs=2 * MIB)


def test_mapped_file_pages_and_own_memory_are_told_apart(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB) * 48)
    mapped = (
        "import mmap, sys, time\n"
        "f = open(sys.argv[1], 'rb')\n"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "sum(m[::4096])\n"
        "time.sleep(0.4)\n"
    )
    touched = run(sys.executable, "-c", mapped, str(path)).memory
    own = run(sys.executable, "-c", ALLOCATE + "; import time; time.sleep(0.4)", str(48 * MIB))
    assert known(touched.file_at_peak_bytes) >= 48 * MIB
    assert known(touched.anon_at_peak_bytes) < 24 * MIB
    assert known(own.memory.anon_at_peak_bytes) >= 48 * MIB
    assert known(own.memory.file_at_peak_bytes) < 24 * MIB
    assert known(own.memory.swap_at_peak_bytes) >= 0


def test_locked_memory_is_seen(run: Run) -> None:
    lock = (
        "import ctypes, time\n"
        "libc = ctypes.CDLL(None)\n"
        "held = ctypes.create_string_buffer(1 << 20)\n"
        "assert libc.mlock(held, 32768) == 0\n"
        "time.sleep(0.4)\n"
    )
    locked = known(run(sys.executable, "-c", lock).memory.peak_locked_bytes)
    assert 32768 <= locked <= 32768 + 2 * os.sysconf("SC_PAGE_SIZE")


def test_physical_reads_of_a_mapped_file_are_counted(run: Run, tmp_path: Path) -> None:
    size = 32 * MIB
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    read = (
        "import mmap, sys\n"
        "f = open(sys.argv[1], 'rb')\n"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "print(sum(m[::4096]))\n"
    )
    run(sys.executable, "-c", read, str(path))  # the interpreter itself is warm from here on
    evict([path])
    cold = run(sys.executable, "-c", read, str(path)).io
    warm = run(sys.executable, "-c", read, str(path)).io
    assert cold.read_bytes == pytest.approx(size, rel=0.02)
    assert known(cold.major_faults) > 0
    # Not 0: a busy machine may have dropped a page of the interpreter in between.
    assert known(warm.read_bytes) < MIB
    # read(2) is another matter: it never sees a mapping.
    assert known(cold.rchar_bytes) < MIB


def test_physical_reads_are_known_to_an_ordinary_user_too(launcher: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("this user is an ordinary one, so the test above has shown it")
    with tempfile.TemporaryDirectory() as name:  # tmp_path is closed to other users
        folder = Path(name)
        folder.chmod(0o777)
        program = shutil.copy(launcher, folder / "launcher")
        files = {option: folder / option for option in ("report", "stdout", "stderr")}
        options = [word for option, path in files.items() for word in (f"--{option}", str(path))]
        limits = ["--time-limit", "60", "--output-limit", "1000"]
        subprocess.run(
            [program, "--parent", str(os.getpid()), *options, *limits, "--", "/bin/sleep", "0.1"],
            user=65534,
            check=True,
        )
        report = json.loads(files["report"].read_text())
    assert report["code"] == 0
    assert report["read_bytes"] >= 0
    assert report["rchar_bytes"] > 0


# --- environment ----------------------------------------------------------------------------------


def test_environment_has_one_size_and_nothing_of_the_caller(
    launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    monkeypatch.setenv("GGML_SCHED_DEBUG", "2")
    sizes = set()
    for extra in ({}, {"A": "ü"}, {"LLAMA_ARG_CTX_SIZE": "512", "B": "x" * 1000}):
        environment = environment_for(extra, tmp_path)
        launch(
            launcher,
            ["/bin/cat", "/proc/self/environ"],
            environment,
            stdout=tmp_path / "out",
            stderr=tmp_path / "err",
            time_limit_s=10,
            output_limit_bytes=MIB,
        )
        block = (tmp_path / "out").read_bytes()
        sizes.add(len(block))
        seen = dict(item.split("=", 1) for item in block.decode().split("\0")[:-1])
        assert seen == environment
        assert extra.items() <= seen.items()
        assert "LLAMA_ARG_THREADS" not in seen
        assert "GGML_SCHED_DEBUG" not in seen
        assert seen["HOME"] == seen["XDG_CONFIG_HOME"] == str(tmp_path)
    assert sizes == {ENVIRONMENT_BYTES}


def test_a_large_environment_takes_the_next_step(tmp_path: Path) -> None:
    environment = environment_for({"A": "x" * 5000}, tmp_path)
    size = sum(len(f"{key}={value}") + 1 for key, value in environment.items())
    assert size == 2 * ENVIRONMENT_BYTES
