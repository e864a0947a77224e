import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure import cgroup, hierarchy
from coldbench.measure.cgroup import (
    NO_GROUP,
    Group,
    memory_controller,
    own_group,
)
from coldbench.measure.hierarchy import Hierarchy
from coldbench.measure.launcher import Launched
from coldbench.measure.pagecache import evict, resident_bytes
from coldbench.measure.reads import disk_of

MIB = 2**20
RunIn = Callable[..., Launched]
HERE = Path(__file__)


def dead_pid() -> int:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    return process.pid


@pytest.mark.usefixtures("real")
def test_a_program_over_its_budget_is_killed_and_the_group_says_so(
    run_in: RunIn, tmp_path: Path
) -> None:
    with own_group(64 * MIB, "test", HERE) as group:
        done = run_in(group, sys.executable, "-c", "held = bytearray(200 << 20)")
        kills, peak = group.oom_kills(), group.peak_bytes()
    assert (done.exit.ended, done.exit.signal) == ("signal", 9)
    assert kills is not None
    assert kills >= 1
    assert peak is None or 0.9 * 64 * MIB <= peak <= 64 * MIB
    assert not group.procs[0].parent.exists()


@pytest.mark.usefixtures("real")
def test_a_program_within_its_budget_is_left_alone(run_in: RunIn, tmp_path: Path) -> None:
    with own_group(64 * MIB, "test", HERE) as group:
        done = run_in(group, "/bin/cat", "/proc/self/cgroup")
        assert done.exit.code == 0
        assert group.oom_kills() == 0
    assert f"/coldbench-{os.getpid()}-test\n" in (tmp_path / "out").read_text()


@pytest.mark.usefixtures("real")
def test_the_group_goes_also_after_an_error_and_a_killed_run() -> None:
    groups = []

    def fail_within() -> None:
        with own_group(64 * MIB, "first", HERE) as group:
            groups.append(group.procs[0].parent)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_within()
    (group,) = groups
    assert not group.exists()
    orphan = group.with_name(f"coldbench-{dead_pid()}-cell")
    living = group.with_name("coldbench-1-cell")
    orphan.mkdir()
    living.mkdir()
    try:
        with own_group(64 * MIB, "second", HERE):
            assert not orphan.exists()
            assert living.exists()
    finally:
        living.rmdir()


def test_a_group_that_cannot_be_joined_is_a_program_not_started(
    run_in: RunIn, tmp_path: Path
) -> None:
    done = run_in(Group((tmp_path / "cgroup.procs",)), "/bin/true")
    assert done.exit.ended == "not started"
    assert done.exit.detail == "cgroup: No such file or directory"


@pytest.mark.usefixtures("real")
def test_page_cache_that_fills_the_group_is_not_out_of_memory(
    run_in: RunIn, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB) * 256)
    evict([path])
    with own_group(64 * MIB, "cache", path) as group:
        done = run_in(group, "/bin/sh", "-c", f"cat {path} > /dev/null")
        assert done.exit.code == 0
        assert group.oom_kills() == 0
        peak = group.peak_bytes()
        assert peak is None or 0.9 * 64 * MIB <= peak <= 64 * MIB
        assert group.in_force() is True
    assert resident_bytes(path) < 64 * MIB


@pytest.mark.usefixtures("real")
def test_a_budget_that_was_not_enforced_shows(run_in: RunIn) -> None:
    def run(group: Group) -> None:
        done = run_in(group, "/bin/true")
        assert done.exit.code == 0

    with own_group(64 * MIB, "test", HERE) as group:
        run(NO_GROUP)  # elsewhere
        assert group.in_force() is False
        run(group)
        assert group.in_force() is True
        names = (
            ["memsw.limit_in_bytes", "limit_in_bytes"] if memory_controller() == "v1" else ["max"]
        )
        for path in (group.procs[0].parent / f"memory.{name}" for name in names):
            if path.exists():
                path.write_text(str(128 * MIB))
        assert group.in_force() is False
    with own_group(None, "test", HERE) as group:
        run(group)
        assert group.in_force() is None


@pytest.mark.usefixtures("real")
def test_a_run_without_a_budget_has_a_group_without_a_limit(run_in: RunIn) -> None:
    script = "held = bytearray(200 << 20); held[::4096] = held[::4096]"
    with own_group(None, "free", HERE) as group:
        done = run_in(group, sys.executable, "-c", script)
        peak = group.peak_bytes()
    assert done.exit.code == 0
    assert peak is None or 200 * MIB <= peak < 260 * MIB
    assert not any(procs.parent.exists() for procs in group.procs)


def test_where_no_group_can_be_made_a_run_without_a_budget_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(group: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(group))

    monkeypatch.setattr(hierarchy, "_make", refuse)
    with own_group(None, "test", HERE) as group:
        assert (group.procs, group.peak_bytes(), group.oom_kills()) == ((), None, None)
        assert group.route in {"device", None}


# --- version 2, which this suite cannot count on: its logic over a tree that looks like it -------


def as_the_kernel_makes_it(group: Path) -> None:
    group.mkdir()
    for name, text in {
        "cgroup.procs": "",
        "cgroup.controllers": "memory",
        "cgroup.subtree_control": "",
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.peak": "0",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    }.items():
        (group / name).write_text(text)


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hierarchy]:
    """slice (hands memory down) / scope (this process's: it holds processes, so it cannot)."""
    monkeypatch.setattr(hierarchy, "_make", as_the_kernel_makes_it)
    monkeypatch.setattr(hierarchy, "_remove", shutil.rmtree)
    root = tmp_path / "cgroup"
    for group in (root, root / "slice", root / "slice/scope"):
        as_the_kernel_makes_it(group)
    (root / "slice/cgroup.subtree_control").write_text("cpu memory pids")
    (root / "slice/scope/cgroup.subtree_control").unlink()
    (root / "slice/scope/cgroup.subtree_control").mkdir()
    yield Hierarchy(2, root, root / "slice/scope")
    assert not list(root.rglob("coldbench-*"))


def test_v2_group_stands_beside_our_own_with_swap_closed(v2: Hierarchy) -> None:
    with own_group(64 * MIB, "pp512 / lazy", HERE, hierarchy=v2) as group:
        path = group.procs[0].parent
        assert path == v2.root / f"slice/coldbench-{os.getpid()}-pp512___lazy"
        assert (path / "memory.max").read_text() == str(64 * MIB)
        assert (path / "memory.swap.max").read_text() == "0"
        (path / "memory.peak").write_text("67108864\n")
        (path / "memory.events").write_text("max 9\noom 2\noom_kill 1\noom_group_kill 0\n")
        assert group.peak_bytes() == 64 * MIB
        assert group.oom_kills() == 1


def test_v2_controller_is_handed_down_where_that_is_allowed(v2: Hierarchy) -> None:
    with own_group(64 * MIB, "x", HERE, hierarchy=Hierarchy(2, v2.root, v2.root)) as group:
        assert group.procs[0].parent.parent == v2.root
        assert (v2.root / "cgroup.subtree_control").read_text() == "+memory"


def test_v2_without_peak_in_an_older_kernel_is_none(
    v2: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(group: Path) -> None:
        as_the_kernel_makes_it(group)
        (group / "memory.peak").unlink()
        (group / "memory.swap.max").unlink()

    monkeypatch.setattr(hierarchy, "_make", older)
    monkeypatch.setattr(cgroup, "_swap_bytes", lambda: 0)
    with own_group(64 * MIB, "x", HERE, hierarchy=v2) as group:
        assert group.peak_bytes() is None
        assert group.oom_kills() == 0


def test_swap_that_cannot_be_shut_is_refused(
    v2: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_swap_accounting(group: Path) -> None:
        as_the_kernel_makes_it(group)
        (group / "memory.swap.max").unlink()

    monkeypatch.setattr(hierarchy, "_make", without_swap_accounting)
    monkeypatch.setattr(cgroup, "_swap_bytes", lambda: 1 << 30)
    refused = pytest.raises(ColdbenchError, match=r"swap cannot be shut .*swapoff -a")
    with refused, own_group(64 * MIB, "x", HERE, hierarchy=v2):
        pytest.fail("the body of a budget that does not hold was entered")


def test_v2_reads_are_those_of_the_models_disk(
    v2: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_of(HERE)
    if disk is None:
        pytest.skip("the tests are on no disk")

    def with_io(group: Path) -> None:
        as_the_kernel_makes_it(group)
        (group / "io.stat").write_text("")

    monkeypatch.setattr(hierarchy, "_make", with_io)
    with own_group(None, "x", HERE, hierarchy=v2) as group:
        assert group.route == "cgroup io"
        assert group.read_bytes() == 0
        lines = f"999:1 rbytes=77 wbytes=1\n{disk} rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0\n"
        (group.procs[0].parent / "io.stat").write_text(lines)
        assert group.read_bytes() == 4096


def test_a_limit_that_does_not_hold_is_refused(
    v2: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf(group: Path) -> None:
        as_the_kernel_makes_it(group)
        (group / "memory.max").unlink()
        (group / "memory.max").symlink_to("/dev/null")

    monkeypatch.setattr(hierarchy, "_make", deaf)
    refused = pytest.raises(ColdbenchError, match=r"max was told 67108864 and has None; run as")
    with refused, own_group(64 * MIB, "x", HERE, hierarchy=v2):
        pytest.fail("the body of a budget that does not hold was entered")


def test_no_group_of_ours_is_refused_with_the_reason_and_the_mend(v2: Hierarchy) -> None:
    for group in (v2.root, v2.root / "slice", v2.own):
        (group / "cgroup.controllers").write_text("cpu pids")
        shutil.rmtree(group / "cgroup.subtree_control", ignore_errors=True)
        (group / "cgroup.subtree_control").unlink(missing_ok=True)
    refused = pytest.raises(ColdbenchError, match=r"scope: has no memory controller.*systemd-run")
    with refused, own_group(64 * MIB, "x", HERE, hierarchy=v2):
        pytest.fail("the body of a budget that does not hold was entered")
