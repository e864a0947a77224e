import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.pagecache import (
    PAGE_BYTES,
    cachestat_pages,
    dirty_bytes,
    evict,
    filesystem,
    hole_bytes,
    mincore_pages,
    open_for_writing,
    resident_bytes,
)

MIB = 2**20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 8 MiB and 100 bytes, on a file system that can be cold."""
    if filesystem(tmp_path).type in {"tmpfs", "zfs"}:
        pytest.skip("the temporary folder is not on a disk: set TMPDIR to one that is")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 * MIB) + b"x" * 100)
    return path


def test_eviction_of_a_file_just_written_leaves_nothing(file: Path) -> None:
    assert resident_bytes(file) == 8 * MIB + 100
    evict([file])
    assert resident_bytes(file) == 0
    file.read_bytes()
    assert resident_bytes(file) == 8 * MIB + 100


def test_both_ways_of_asking_agree_on_every_range(file: Path) -> None:
    evict([file])
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for page in (0, 3, 4, 700, 2048):
            os.pread(descriptor, 1, page * PAGE_BYTES)
        size = os.fstat(descriptor).st_size
        ranges = [(0, size), (0, 1), (PAGE_BYTES, 2 * PAGE_BYTES), (3 * PAGE_BYTES + 5, PAGE_BYTES),
                  (size - 1, 1), (100 * PAGE_BYTES + 1, 4 * MIB)]  # fmt: skip
        by_mincore = [mincore_pages(descriptor, *asked) for asked in ranges]
        try:
            by_cachestat = [cachestat_pages(descriptor, *asked) for asked in ranges]
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EPERM):
                pytest.skip("this kernel has no cachestat(2)")
            raise
    finally:
        os.close(descriptor)
    assert by_cachestat == by_mincore
    assert 0 < by_mincore[0] < size // PAGE_BYTES
    assert by_mincore[1] == 1


def test_a_range_is_cut_to_its_own_size_and_to_the_file(file: Path) -> None:
    file.read_bytes()
    assert resident_bytes(file, 10, 100) == 100
    assert resident_bytes(file, 8 * MIB, 10 * MIB) == 100
    assert resident_bytes(file, 9 * MIB) == 0
    assert resident_bytes(file, 5, 0) == 0
    (file.parent / "empty").touch()
    assert resident_bytes(file.parent / "empty") == 0


def test_a_symlink_is_measured_and_evicted_on_its_file(file: Path) -> None:
    link = file.parent / "link"
    link.symlink_to(file)
    evict([link])
    assert resident_bytes(file) == resident_bytes(link) == 0
    assert filesystem(link) == filesystem(file)
    dangling = file.parent / "dangling"
    dangling.symlink_to("nowhere")
    with pytest.raises(ColdbenchError, match=r"dangling: cannot be read: No such file"):
        evict([dangling])


def test_a_file_of_somebody_else_is_unknown_not_resident() -> None:
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from coldbench.common.errors import ColdbenchError\n"
        "from coldbench.measure.pagecache import resident_bytes\n"
        "os.getuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534))\n"
        "try: print(resident_bytes(Path('/etc/passwd')))\n"
        "except ColdbenchError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    assert said.startswith("/etc/passwd: residency unknown: no write permission"), said
    if os.getuid() == 0:
        assert 0 <= resident_bytes(Path("/etc/passwd")) <= Path("/etc/passwd").stat().st_size


def test_a_dirty_page_counts_until_it_is_written_out(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(b"y" * PAGE_BYTES)
        stream.flush()
        dirty = dirty_bytes(file)
        if dirty is None:
            pytest.skip("this kernel has no cachestat(2)")
        assert dirty >= PAGE_BYTES
    evict([file])
    assert dirty_bytes(file) == 0


def test_a_file_that_somebody_may_write_is_told_from_one_that_is_read(file: Path) -> None:
    assert open_for_writing(file) is False
    with file.open("rb"):
        assert open_for_writing(file) is False
    with file.open("r+b"):
        assert open_for_writing(file) is True
    assert open_for_writing(file) is False
    if os.getuid() == 0:
        os.chown(file, 65534, 65534)
        assert open_for_writing(file) is False


def test_holes_are_what_needs_no_reading(file: Path) -> None:
    assert hole_bytes(file) == 0
    with file.open("r+b") as stream:
        stream.truncate(20 * MIB)
        stream.seek(16 * MIB)
        stream.write(b"z" * MIB)
        stream.flush()
        os.fsync(stream.fileno())
    blocks = file.stat().st_blocks * 512
    assert hole_bytes(file) == pytest.approx(20 * MIB - blocks, abs=2**16)
    assert hole_bytes(file) == pytest.approx(11 * MIB, abs=2**17)
    (file.parent / "empty").touch()
    assert hole_bytes(file.parent / "empty") == 0


OVERLAY = """
import sys
from pathlib import Path
from coldbench.measure.pagecache import evict, filesystem, resident_bytes
path = Path(sys.argv[1])
path.read_bytes()
print(filesystem(path).type, resident_bytes(path), end=" ")
evict([path])
print(resident_bytes(path))
"""


def test_residency_is_true_on_overlayfs_where_cachestat_sees_nothing(tmp_path: Path) -> None:
    if not shutil.which("unshare") or os.getuid() != 0:
        pytest.skip("mounting an overlay needs root and unshare(1)")
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    with (tmp_path / "lower/file").open("wb") as lower:
        lower.write(os.urandom(MIB))
        lower.flush()
        os.fsync(lower.fileno())  # fsync(2) on the overlay does not reach a lower file
    mount = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged"
    with_overlay = ["unshare", "--mount", "sh", "-c", f'{mount} || exit 99; exec "$@"', "sh"]
    command = [*with_overlay, sys.executable, "-c", OVERLAY, "merged/file"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"an overlay cannot be mounted here: {done.stderr.strip()}")
    assert done.stdout == f"overlay {MIB} 0\n", done.stderr


def test_the_file_system_is_that_of_the_innermost_mount() -> None:
    assert filesystem(Path("/proc/self/status")).type == "proc"
    assert filesystem(Path("/proc/self/status")).mount == "/proc"
    here = filesystem(Path(__file__))
    assert here.type != "proc"
    assert Path(__file__).resolve().is_relative_to(here.mount)
