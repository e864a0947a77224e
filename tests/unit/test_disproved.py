"""What proves after a run that it was not cold or warm: real files, readers and evictions."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coldbench.measure.certificate import disproved, make_cold, never_cold
from coldbench.measure.pagecache import filesystem, resident_bytes
from coldbench.records import CacheState, Io, Residency

MIB = 2**20
SIZE = 32 * MIB


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 32 MiB, on a file system that can be cold."""
    if never_cold(filesystem(tmp_path)):
        pytest.skip("the temporary folder is not on a disk: set TMPDIR to one that is")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


def known(value: int | None) -> int:
    assert value is not None
    return value


ENGINE = """
import mmap, os, sys
path, size, go_around = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
d = os.open(path, os.O_RDONLY | (os.O_DIRECT if go_around else 0))
print("ready", flush=True)
sys.stdin.readline()
buffer = mmap.mmap(-1, 1 << 20)
for offset in range(0, size, 1 << 20):
    os.preadv(d, [buffer], offset)
counters = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(counters["read_bytes"])
"""


def engine(path: Path, *arguments: str, meanwhile: Callable[[], object] = lambda: None) -> Io:
    """Run a program that reads the first `arguments[0]` bytes; `meanwhile` happens before it does.

    Returns its physical reads.
    """
    command = [sys.executable, "-c", ENGINE, str(path), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        meanwhile()
        said, _ = process.communicate(b"go\n", timeout=60)
    return Io(read_bytes=int(said))


def elsewhere(script: str, path: Path) -> None:
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


READS_ALL = "import sys; open(sys.argv[1], 'rb').read()"
EVICTS = (
    "import os, sys; d = os.open(sys.argv[1], os.O_RDONLY); "
    "os.posix_fadvise(d, 0, 0, os.POSIX_FADV_DONTNEED)"
)


def residency(path: Path) -> Residency:
    return Residency(files={path.name: resident_bytes(path)})


@pytest.fixture
def quick_start(file: Path) -> None:
    """Have the interpreter itself in the cache, so that its pages are no reads of the engine."""
    engine(file, "1")


@pytest.mark.usefixtures("quick_start")
def test_a_cold_run_alone_is_not_disproved(file: Path) -> None:
    for size in (SIZE, MIB):
        certificate = make_cold([file])
        before = residency(file)
        io = engine(file, str(size))
        after = residency(file)
        assert after.total_bytes >= size
        assert disproved("cold", certificate, before=before, after=after, io=io) == ""


@pytest.mark.usefixtures("quick_start")
def test_a_cold_run_whose_model_somebody_read_before_it_is_disproved(file: Path) -> None:
    certificate = make_cold([file])
    elsewhere(READS_ALL, file)
    before = residency(file)
    io = engine(file, str(SIZE))
    reason = disproved("cold", certificate, before=before, after=residency(file), io=io)
    assert reason.startswith(f"{SIZE:,} bytes were in the page cache again just before the start")


@pytest.mark.usefixtures("quick_start")
def test_a_cold_run_whose_model_somebody_reads_meanwhile_is_disproved(file: Path) -> None:
    certificate = make_cold([file])
    before = residency(file)
    io = engine(file, str(SIZE), meanwhile=lambda: elsewhere(READS_ALL, file))
    assert known(io.read_bytes) < MIB
    reason = disproved("cold", certificate, before=before, after=residency(file), io=io)
    assert f"took in {SIZE:,} bytes of the model, of which the engine itself read only" in reason
    assert "another process read the model during the run" in reason


@pytest.mark.usefixtures("quick_start")
def test_holes_come_into_the_cache_without_a_read(file: Path) -> None:
    os.truncate(file, 2 * SIZE)
    certificate = make_cold([file])
    assert certificate["files"][0]["holes_bytes"] == SIZE
    before = residency(file)
    io = engine(file, str(2 * SIZE))
    after = residency(file)
    assert after.total_bytes == 2 * SIZE
    assert known(io.read_bytes) < 1.1 * SIZE
    assert disproved("cold", certificate, before=before, after=after, io=io) == ""


def warm(
    file: Path,
    *arguments: str,
    between: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> str:
    """Make a warm run as a study does, with something in between or during it; judge it."""
    certificate = make_cold([file])
    engine(file, *arguments)
    primed = resident_bytes(file)
    between()
    before = residency(file)
    io = engine(file, *arguments, meanwhile=meanwhile)
    after = residency(file)
    return disproved("warm", certificate, before=before, after=after, io=io, primed_bytes=primed)


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize("size", [SIZE, 4 * MIB])
def test_a_warm_run_is_warm_unless_evicted_in_between_or_during_it(file: Path, size: int) -> None:
    def evicts() -> None:
        elsewhere(EVICTS, file)

    assert warm(file, str(size)) == ""
    between = warm(file, str(size), between=evicts)
    assert between.startswith("evicted in between: of ")
    assert between.endswith("left in the page cache, 0 were there at the start")
    during = warm(file, str(size), meanwhile=evicts)
    assert "what was in the page cache was evicted during the run" in during


@pytest.mark.usefixtures("quick_start")
def test_an_engine_that_goes_around_the_cache_is_never_warm(file: Path) -> None:
    reason = warm(file, str(SIZE), "direct")
    assert reason.startswith(f"the engine read {SIZE:,} bytes from the disk, more than the 0 that")
    assert "O_DIRECT" in reason


CERTIFICATE = {"files": [{"bytes": 1000 * MIB, "holes_bytes": 0}]}


@pytest.mark.parametrize(
    ("state", "primed", "before", "after", "io", "expected"),
    [
        # What is not known proves nothing.
        ("cold", None, {}, {}, Io(), ""),
        ("cold", None, {"a": 0}, {"a": 900 * MIB}, Io(), ""),
        ("cold", None, {"a": 0}, {}, Io(read_bytes=0), ""),
        ("warm", None, {}, {}, Io(), ""),
        ("warm", 500 * MIB, {}, {}, Io(), ""),
        ("unmeasured", 500 * MIB, {"a": 0}, {"a": 0}, Io(read_bytes=500 * MIB), ""),
        # Up to 2% and 1 MiB may come from elsewhere.
        ("cold", None, {"a": 0}, {"a": 103 * MIB}, Io(read_bytes=100 * MIB), ""),
        ("cold", None, {"a": 0}, {"a": 103 * MIB + 1}, Io(read_bytes=100 * MIB), "took in"),
        ("cold", None, {"a": 1}, {"a": 1}, Io(read_bytes=100 * MIB), "just before the start"),
        # Children that the engine did not wait for count in its group, others on its disk do not.
        ("cold", None, {"a": 0}, {"a": 9 * MIB},
         Io(read_bytes=0, second_read_bytes=9 * MIB, second_route="cgroup blkio"), ""),
        ("cold", None, {"a": 0}, {"a": 9 * MIB},
         Io(read_bytes=0, second_read_bytes=9 * MIB, second_route="device"), "took in"),
        # 1% of what was primed, and at least 1 MiB; without it, of the model.
        ("warm", 500 * MIB, {"a": 495 * MIB}, {}, Io(read_bytes=5 * MIB), ""),
        ("warm", 500 * MIB, {"a": 495 * MIB - 1}, {}, Io(read_bytes=0), "evicted in between"),
        ("warm", 500 * MIB, {"a": 500 * MIB}, {}, Io(read_bytes=5 * MIB + 1), "during the run"),
        ("warm", 2 * MIB, {"a": 2 * MIB}, {}, Io(read_bytes=MIB), ""),
        ("warm", 2 * MIB, {"a": 2 * MIB}, {}, Io(read_bytes=MIB + 1), "during the run"),
        ("warm", 60 * MIB, {"a": 60 * MIB}, {"a": 68 * MIB}, Io(read_bytes=8 * MIB), ""),
        ("warm", 60 * MIB, {"a": 60 * MIB}, {"a": 68 * MIB + 1}, Io(read_bytes=8 * MIB + 1),
         "did not do the same"),
        ("warm", 60 * MIB, {"a": 60 * MIB}, {"a": 62 * MIB}, Io(read_bytes=8 * MIB),
         "during the run"),
        ("warm", 60 * MIB, {"a": 60 * MIB}, {}, Io(read_bytes=600 * MIB), "or its budget"),
        ("warm", None, {}, {}, Io(read_bytes=10 * MIB), ""),
        ("warm", None, {}, {}, Io(read_bytes=10 * MIB + 1), "during the run"),
    ],
)  # fmt: skip
def test_what_proves_a_state_wrong(
    state: CacheState,
    primed: int | None,
    before: dict[str, int],
    after: dict[str, int],
    io: Io,
    expected: str,
) -> None:
    reason = disproved(
        state,
        CERTIFICATE,
        before=Residency(files=before),
        after=Residency(files=after),
        io=io,
        primed_bytes=primed,
        read_ahead_bytes=8 * MIB,
    )
    assert expected in reason
    assert bool(reason) == bool(expected)


def test_on_a_file_system_that_compresses_bytes_read_prove_nothing() -> None:
    told = {
        "before": Residency(files={"a": 0}),
        "after": Residency(files={"a": 90 * MIB}),
        "io": Io(read_bytes=MIB),
    }
    certificate = {"files": [{"bytes": 100 * MIB, "holes_bytes": None}]}
    assert disproved("cold", certificate, **told) == ""  # type: ignore[arg-type]
    assert disproved("cold", CERTIFICATE, **told) != ""  # type: ignore[arg-type]
