"""The ledger of memory and reads against programs of known behaviour (tests/native)."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest

from coldbench.common.compiler import find_compiler
from coldbench.common.errors import ColdbenchError
from coldbench.measure.cgroup import Group, own_group
from coldbench.measure.launcher import Launched, environment_for, launch
from coldbench.measure.pagecache import evict, filesystem, resident_bytes
from coldbench.measure.reads import attributed, device_counter, disk_of
from coldbench.records import Io

MIB = 2**20
N = 512 * MIB
SOURCES = Path(__file__).parents[1] / "native"
Run = Callable[..., Launched]
T = TypeVar("T")


def known(value: T | None) -> T:
    assert value is not None
    return value


def about(size: int) -> Any:
    return pytest.approx(size, rel=0.01)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    compiler = find_compiler("C").path
    for source in SOURCES.glob("*.c"):
        subprocess.run(
            [compiler, "-O1", "-Wall", "-Werror", source, "-o", folder / source.stem], check=True
        )
    return folder


@pytest.fixture
def run(launcher: Path, programs: Path, tmp_path: Path) -> Run:
    def _run(program: str, *arguments: str, **more: Any) -> Launched:
        done = launch(
            launcher,
            [str(programs / program), *arguments],
            environment_for({}, tmp_path / "home"),
            stdout=tmp_path / "stdout",
            stderr=tmp_path / "stderr",
            time_limit_s=60,
            output_limit_bytes=MIB,
            **more,
        )
        assert done.exit.code == 0, (done.exit, (tmp_path / "stderr").read_text())
        return done

    return _run


@pytest.fixture(scope="module")
def gibibyte(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a file without holes on a disk, and delete it: the suite's folders are kept a while."""
    path = tmp_path_factory.mktemp("data") / "file"
    if disk_of(path.parent) is None:
        pytest.skip(f"{path.parent} is on {filesystem(path.parent).type}, not on a disk")
    with path.open("wb") as file:
        for _ in range(16):
            file.write(os.urandom(64 * MIB))
    yield path
    path.unlink()


# --- memory ---------------------------------------------------------------------------------------


def test_memory_of_a_program_that_allocates_and_ends_at_once(run: Run) -> None:
    memory = run("memory", "allocate", str(N)).memory
    assert memory.peak_rss_bytes == about(N)
    assert known(memory.tree_peak_rss_bytes) >= known(memory.peak_rss_bytes)
    assert memory.processes == 1


def test_own_memory_is_anonymous(run: Run) -> None:
    memory = run("memory", "hold", str(N)).memory
    assert memory.peak_rss_bytes == about(N)
    assert memory.anon_at_peak_bytes == about(N)
    assert known(memory.file_at_peak_bytes) < 0.01 * N
    assert memory.shmem_at_peak_bytes == 0
    assert memory.tree_peak_rss_bytes == about(N)


def test_a_mapped_file_is_file_memory(run: Run, gibibyte: Path) -> None:
    memory = run("memory", "map", str(N), str(gibibyte)).memory
    assert memory.peak_rss_bytes == about(N)
    assert memory.file_at_peak_bytes == about(N)
    assert known(memory.anon_at_peak_bytes) < 0.01 * N


def test_memory_of_a_child_is_the_trees_not_the_programs(run: Run) -> None:
    memory = run("memory", "fork", str(N)).memory
    assert known(memory.peak_rss_bytes) < 4 * MIB
    assert memory.tree_peak_rss_bytes == about(N)
    assert memory.processes == 2


def test_a_daemon_belongs_to_the_tree(run: Run) -> None:
    memory = run("memory", "daemon", str(N)).memory
    assert known(memory.peak_rss_bytes) < 4 * MIB
    assert memory.tree_peak_rss_bytes == about(N)


def test_memory_shared_between_vfork_and_exec_counts_once(run: Run) -> None:
    memory = run("memory", "vfork", str(N)).memory
    assert memory.peak_rss_bytes == about(N)
    assert memory.tree_peak_rss_bytes == about(N)


def test_with_a_budget_nothing_is_swapped_and_the_group_is_charged(
    run: Run, tmp_path: Path
) -> None:
    with budgeted(2 * N, tmp_path) as group:
        memory = run("memory", "hold", str(N), group=group).memory
        peak = group.peak_bytes()
        assert group.in_force()
    assert memory.anon_at_peak_bytes == about(N)
    assert memory.swap_at_peak_bytes == 0
    assert peak is None or peak == about(N)


def budgeted(size: int, model: Path) -> Any:
    try:
        with own_group(size, "probe", model):
            pass
    except ColdbenchError as error:
        pytest.skip(str(error))
    return own_group(size, "ledger", model)


FAT_PARENT = """
import sys
from pathlib import Path
from coldbench.measure.launcher import environment_for, launch
launcher, folder, size, *argv = sys.argv[1:]
ballast = b"x" * int(size)
done = launch(Path(launcher), argv, environment_for({}, Path(folder)),
              stdout=Path(folder, "out"), stderr=Path(folder, "err"),
              time_limit_s=60, output_limit_bytes=10_000)
print(done.memory.peak_rss_bytes, done.memory.tree_peak_rss_bytes)
"""


def test_peak_rss_does_not_know_how_large_the_harness_is(launcher: Path, tmp_path: Path) -> None:
    peaks = []
    for size in (0, 600 * MIB):
        arguments = [str(launcher), str(tmp_path), str(size), "/bin/true"]
        command = [sys.executable, "-c", FAT_PARENT, *arguments]
        said = subprocess.run(command, check=True, capture_output=True).stdout
        peaks.append([int(word) for word in said.split()])
    assert peaks[0][0] < 10 * MIB
    assert all(abs(fat - thin) < MIB for thin, fat in zip(*peaks, strict=True))


# --- physical reads -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["read", "mmap", "direct"])
def test_a_cold_gibibyte_is_a_gibibyte_by_both_routes(
    run: Run, tmp_path: Path, gibibyte: Path, way: str
) -> None:
    size = gibibyte.stat().st_size
    with own_group(None, "reads", gibibyte) as group:
        evict([gibibyte])
        cold = run("reads", way, str(gibibyte), group=group).io
        read = int((tmp_path / "stdout").read_text())
        again = run("reads", way, str(gibibyte), group=group).io
    assert read == size
    assert cold.read_bytes == pytest.approx(size, rel=0.02)
    assert cold.second_read_bytes == pytest.approx(size, rel=0.02)
    assert cold.attributed is True
    if os.geteuid() == 0:
        assert cold.second_route in {"cgroup blkio", "cgroup io"}
    if way == "direct":  # which never fills the cache
        assert again.second_read_bytes == pytest.approx(size, rel=0.02)
    else:
        # Some: a kernel that reclaims proactively (DAMON) may have put a few pages out already.
        assert known(again.read_bytes) < 0.01 * size
        assert known(again.second_read_bytes) < 0.01 * size
        # The group is gone, and its pages are not: the next arm starts from where this one ended.
        assert resident_bytes(gibibyte) == size


def test_the_devices_counter_serves_where_there_is_no_group(run: Run, gibibyte: Path) -> None:
    size = gibibyte.stat().st_size
    group = Group(_reads=device_counter(disk_of(gibibyte)))
    for _ in range(6):  # it counts whoever reads, such as tests beside this one
        evict([gibibyte])
        io = run("reads", "read", str(gibibyte), group=group).io
        assert known(io.second_read_bytes) >= 0.98 * size
        if io.attributed:
            break
    assert io.second_route == "device"
    assert io.second_read_bytes == pytest.approx(size, rel=0.02)
    assert io.attributed


def test_agreement_is_two_per_cent_or_a_stray_fault() -> None:
    def verdict(own: int | None, second: int | None) -> bool | None:
        return attributed(Io(read_bytes=own), "device", 1000, second and 1000 + second).attributed

    assert verdict(1000 * MIB, 1020 * MIB)
    assert verdict(1000 * MIB, 1021 * MIB) is False
    assert verdict(1021 * MIB, 1000 * MIB) is False
    assert verdict(MIB, MIB + (256 << 10))
    assert verdict(MIB, MIB + (256 << 10) + 4096) is False
    assert verdict(None, MIB) is None
    assert verdict(MIB, None) is None


def test_memory_file_systems_and_missing_files_have_no_disk(tmp_path: Path) -> None:
    assert disk_of(Path("/proc/self/status")) is None
    assert disk_of(tmp_path / "missing") is None
    assert device_counter(None) is None


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Path]:
    """Mount a partition of a loop device, whose own file lies on another disk."""
    tools = ("losetup", "addpart", "delpart", "mkfs.ext4", "mount", "umount")
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in tools):
        pytest.skip(f"needs root and {', '.join(tools)}")
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    found = subprocess.run(
        ["losetup", "--find", "--show", image], check=False, capture_output=True, text=True
    )
    if found.returncode:
        pytest.skip(f"no loop device: {found.stderr.strip()}")
    device = found.stdout.strip()
    try:
        subprocess.run(["addpart", device, "1", "2048", "126976"], check=True)
        subprocess.run(["mkfs.ext4", "-q", f"{device}p1"], check=True)
        subprocess.run(["mount", f"{device}p1", mount], check=True)
        yield mount
        subprocess.run(["umount", mount], check=True)
    finally:
        # A partition that was added by hand would outlive its device's detachment.
        subprocess.run(["delpart", device, "1"], check=False)
        subprocess.run(["losetup", "--detach", device], check=True)


def test_disks_below_each_other_count_once(run: Run, partition: Path) -> None:
    size = 32 * MIB
    path = partition / "file"
    path.write_bytes(os.urandom(size))
    number = os.major(path.stat().st_dev), os.minor(path.stat().st_dev)
    disk = known(disk_of(path))
    assert disk.startswith("7:")  # the whole loop device
    assert disk != f"{number[0]}:{number[1]}"  # not the partition
    for group in (own_group(None, "loop", path), nullcontext(Group(_reads=device_counter(disk)))):
        evict([path])
        with group as entered:
            io = run("reads", "read", str(path), group=entered).io
        assert io.read_bytes == pytest.approx(size, rel=0.02)
        assert io.second_read_bytes == pytest.approx(size, rel=0.02)
        assert io.attributed is True


# --- code files -----------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path) -> Callable[[bytes], Path]:
    def _library(name: bytes) -> Path:
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        source = tmp_path / "library.c"
        source.write_text("int answer(void) { return 42; }\n")
        compiler = find_compiler("C").path
        subprocess.run([compiler, "-shared", "-fPIC", source, "-o", path], check=True)
        return path

    return _library


def test_loaded_are_the_program_and_its_libraries(
    run: Run, programs: Path, library: Callable[[bytes], Path]
) -> None:
    path = library(b"libplain.so")
    data = path.with_name("data.so")
    data.write_bytes(path.read_bytes())
    loaded = known(run("load", str(path)).loaded)
    assert str(programs / "load") in loaded
    assert str(path) in loaded
    assert any("libc" in name for name in loaded)
    assert str(data) not in loaded
    assert all(name.startswith("/") for name in loaded)
    assert len(set(loaded)) == len(loaded)


def test_a_name_of_any_bytes_is_kept_and_a_deleted_file_is_marked(
    run: Run, tmp_path: Path, library: Callable[[bytes], Path]
) -> None:
    path = library(b'li"b \\ \t \n \xc3\xbc \xff.so')
    loaded = known(run("load", str(path), "delete").loaded)
    # As proc_pid_maps(5) has it: only the newline is written differently.
    assert f'{tmp_path}/li"b \\ \t \\012 ü \\xff.so (deleted)' in loaded
