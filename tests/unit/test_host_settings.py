"""Host settings of an arm, on this machine's own files: in force for a run, and put back."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.common.locks import machine_lock_path
from coldbench.measure import settings
from coldbench.measure.host import host_facts, read_ahead_file
from coldbench.measure.settings import NotPutBackError, in_force, put_back_left_over
from coldbench.study.plan import Plan
from coldbench.study.settings import open_study
from coldbench.study.treatment import Host

AHEAD = read_ahead_file(Path(__file__))
MINE = Host(read_ahead_kb=64)


def ahead() -> int:
    assert AHEAD is not None
    return int(AHEAD.read_text())


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock file of the test's own."""
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "lock"))


@pytest.fixture
def machine() -> Iterator[int]:
    """The machine's value, put back whatever happens."""
    if AHEAD is None or not os.access(AHEAD, os.W_OK):
        pytest.skip("this user may not set this machine's read_ahead_kb")
    before = ahead()
    yield before
    AHEAD.write_text(str(before))


def journal() -> Path:
    return machine_lock_path().with_suffix(".settings.json")


def test_a_setting_is_in_force_inside_and_put_back_after(machine: int) -> None:
    assert machine != 64
    with in_force(MINE, Path(__file__)) as changed:
        assert ahead() == 64
        assert host_facts(Path(__file__))["disk_read_ahead_kb"] == 64
        assert json.loads(journal().read_text())["files"] == {
            str(AHEAD and AHEAD.resolve()): str(machine)
        }
    assert changed.values == {"read_ahead_kb": 64}
    assert changed.disturbed == ""
    assert ahead() == machine
    assert not journal().exists()


def test_no_setting_touches_nothing(machine: int) -> None:
    with in_force(Host(), Path(__file__)) as changed:
        assert not journal().exists()
        assert ahead() == machine
    assert changed.values == {}


def test_it_is_put_back_after_an_error(machine: int) -> None:
    with pytest.raises(RuntimeError, match="engine"), in_force(MINE, Path(__file__)):
        raise RuntimeError("engine")
    assert ahead() == machine


def test_what_another_changes_meanwhile_is_told(machine: int) -> None:
    assert AHEAD is not None
    with in_force(MINE, Path(__file__)) as changed:
        AHEAD.write_text("32")
    assert changed.disturbed.startswith("read_ahead_kb was 32 after the run, not 64")
    assert ahead() == machine


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"PPid:\t{pid}\n" in (folder / "status").read_text():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            pass  # ended meanwhile
    return found


def killed_inside(*, guard_too: bool) -> None:
    """Kill a process that has the setting in force, as the kernel's SIGKILL does."""
    script = textwrap.dedent(f"""
        import subprocess, sys, time
        from pathlib import Path
        from coldbench.measure.settings import in_force
        from coldbench.study.treatment import Host
        with in_force(Host(read_ahead_kb=64), Path({__file__!r})):
            print("in force", flush=True)
            time.sleep(60)
    """)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "in force\n"
    assert ahead() == 64
    guards = children(child.pid)
    assert len(guards) == 1
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guards[0], kind)  # as a closing terminal or a batch system sends
    assert os.getsid(guards[0]) == guards[0]  # so that kill -9 of our process group passes it by
    if guard_too:
        os.kill(guards[0], signal.SIGKILL)
    child.kill()
    child.wait()


def test_it_is_put_back_when_the_job_is_killed(machine: int) -> None:
    killed_inside(guard_too=False)
    until = time.monotonic() + 20
    while journal().exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert ahead() == machine
    assert not journal().exists()


def test_a_journal_that_is_no_file_is_left_alone_and_told(machine: int) -> None:
    os.mkfifo(journal())
    try:
        put_back_left_over()  # and does not wait for somebody to write
        with (
            pytest.raises(ColdbenchError, match=r"delete the file"),
            in_force(MINE, Path(__file__)),
        ):
            raise AssertionError("must not begin")
    finally:
        journal().unlink()
    assert ahead() == machine


def test_the_next_job_puts_back_what_a_killed_guard_left(
    machine: int, caplog: pytest.LogCaptureFixture
) -> None:
    killed_inside(guard_too=True)
    time.sleep(0.3)
    assert ahead() == 64
    put_back_left_over()
    assert ahead() == machine
    assert not journal().exists()
    assert f"set back to {machine}" in caplog.text
    put_back_left_over()


def test_the_job_puts_back_by_itself_when_only_the_guard_is_killed(machine: int) -> None:
    others = children(os.getpid())
    with in_force(MINE, Path(__file__)):
        (guard,) = set(children(os.getpid())) - {*others}
        os.kill(guard, signal.SIGKILL)
        assert ahead() == 64
    assert ahead() == machine
    assert not journal().exists()


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_next_job_waits_for_a_guard_that_is_still_at_work(machine: int) -> None:
    assert AHEAD is not None
    journal().write_text(json.dumps({"boot": boot(), "files": {str(AHEAD.resolve()): "32"}}))
    guard = os.open(journal(), os.O_RDWR)
    fcntl.flock(guard, fcntl.LOCK_EX)

    def done() -> None:
        journal().unlink()
        os.close(guard)

    timer = threading.Timer(0.5, done)
    timer.start()
    put_back_left_over()
    timer.join()
    assert ahead() == machine  # what the guard had put back was left alone


def test_a_live_guard_has_its_journal_locked(machine: int) -> None:
    with (
        in_force(MINE, Path(__file__)),
        journal().open() as stream,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert ahead() == machine


def test_a_journal_of_another_user_is_neither_believed_nor_written_over(machine: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    assert AHEAD is not None
    text = json.dumps({"boot": boot(), "files": {str(AHEAD.resolve()): "32"}})
    journal().write_text(text)
    os.chown(journal(), 65534, 65534)
    put_back_left_over()
    assert ahead() == machine
    with (
        pytest.raises(ColdbenchError, match=r"lock\.settings\.json: another user's run was killed"),
        in_force(MINE, Path(__file__)),
    ):
        pass
    assert ahead() == machine
    assert journal().read_text() == text


def test_another_user_s_journal_of_an_earlier_boot_stands_in_nobody_s_way(machine: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    journal().write_text(json.dumps({"boot": "another", "files": {}}))
    os.chown(journal(), 65534, 65534)
    put_back_left_over()
    with in_force(MINE, Path(__file__)):
        assert ahead() == 64
    assert ahead() == machine
    assert not journal().exists()


def test_what_cannot_be_put_back_stops_and_stays_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("madvise")
    monkeypatch.setattr(settings, "HUGE_PAGES", setting)

    def spoilt() -> None:
        with in_force(Host(transparent_hugepage="never"), Path(__file__)):
            assert setting.read_text() == "never"
            setting.unlink()
            setting.mkdir()  # not even root can write it

    with pytest.raises(NotPutBackError, match=r"enabled: could not be put back to madvise"):
        spoilt()
    assert json.loads(journal().read_text())["files"] == {str(setting): "madvise"}


def test_a_value_that_the_kernel_rounds_is_refused(machine: int) -> None:
    with (
        pytest.raises(ColdbenchError, match=r"made 128 of 130; ask for 128"),
        in_force(Host(read_ahead_kb=130), Path(__file__)),
    ):
        pass
    assert ahead() == machine


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"boot": 1}', '{"files": {"/sys/kernel/mm/other": "1"}}'],
)
def test_a_journal_that_is_none_is_removed(machine: int, text: str) -> None:
    journal().write_text(text)
    put_back_left_over()
    assert not journal().exists()
    assert ahead() == machine


def test_a_journal_may_name_no_file_but_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim = tmp_path / "read_ahead_kb"
    victim.write_text("7")
    for path in (victim, f"/sys/devices/../..{victim}", f"/sys/devices/..{victim}"):
        journal().write_text(json.dumps({"boot": boot(), "files": {str(path): "8"}}))
        put_back_left_over()
        assert victim.read_text() == "7"
        assert f"names {path}, which no run of ours changes: left alone" in caplog.text


def test_a_device_may_have_any_name_that_the_kernel_gives_it() -> None:
    """Such as those of a device tree: /sys/devices/platform/soc@0/1d84000.ufshc/..."""
    assert settings._OURS.fullmatch("/sys/devices/platform/soc@0/u fs,1/queue/read_ahead_kb")
    assert not settings._OURS.fullmatch("/sys/devices/platform/soc@0/queue/rotational")


def test_of_an_earlier_boot_nothing_is_put_back(machine: int) -> None:
    assert AHEAD is not None
    path = str(AHEAD.resolve())
    journal().write_text(json.dumps({"boot": "another", "files": {path: "32"}}))
    put_back_left_over()
    assert ahead() == machine
    assert not journal().exists()


def test_what_cannot_be_set_is_refused_with_the_mend(
    machine: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HUGE_PAGES", Path("/proc/version"))
    asked = Host(read_ahead_kb=64, transparent_hugepage="never")
    with (
        pytest.raises(ColdbenchError, match=r"/proc/version: cannot be set to never: .*as root"),
        in_force(asked, Path(__file__)),
    ):
        pass
    assert ahead() == machine
    monkeypatch.setattr(settings, "HUGE_PAGES", tmp_path / "none")
    with (
        pytest.raises(ColdbenchError, match="host: transparent_hugepage: this machine does not"),
        in_force(asked, Path(__file__)),
    ):
        pass


STUDY = """\
models: {m: {source: {path: m.gguf}}}
builds: {b: {source: {binaries: b}}}
workloads: {w: {driver: llama-bench}}
factors:
  ahead:
    own: {args: [-x, 1]}
    "{k}": {sweep: {k: [0, 4096]}, host: {read_ahead_kb: "{k}"}}
  pages:
    never: {host: {transparent_hugepage: never}}
arms: {matrix: {build: b, ahead: "*", pages: never}, name: "{ahead}"}
blocks: {cold: 3}
"""


def study(folder: Path, text: str = STUDY) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_levels_add_up_and_are_treatments(tmp_path: Path) -> None:
    arms = {arm.name: arm.host.given for arm in Plan(study(tmp_path)).arms}
    assert arms["own"] == {"transparent_hugepage": "never"}
    assert arms["0"] == {"read_ahead_kb": 0, "transparent_hugepage": "never"}
    assert arms["4096"] == {"read_ahead_kb": 4096, "transparent_hugepage": "never"}


PERMISSION = (
    r"study\.yaml: sets transparent_hugepage never, read_ahead_kb 0, read_ahead_kb 4096 on this "
    r"machine while own, 0, 4096, own-again run.*set_host=true"
)


def test_a_study_needs_permission(tmp_path: Path) -> None:
    path = str(study(tmp_path))
    with pytest.raises(ColdbenchError, match=PERMISSION):
        open_study({"study": path}, tmp_path)
    assert open_study({"study": path, "set_host": "true"}, tmp_path)[1].arms


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('read_ahead_kb: "{k}"', 'read_ahead_kb: "-{k}"', r"study.yaml:7: factors.ahead.4096.host"),
        ("read_ahead_kb", "readahead_kb", r"unknown key .*host.readahead_kb; did you mean read_a"),
        ("hugepage: never", "hugepage: off", r":9: factors.pages.never.host.transparent_hugepage"),
    ],
)
def test_a_slip_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in STUDY
    with pytest.raises(ColdbenchError, match=said):
        Plan(study(tmp_path, STUDY.replace(old, new)))
