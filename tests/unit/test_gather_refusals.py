"""The gather kernel where its trace, its file, the kernel or its use is wrong."""

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .gather_kernel import (
    DIRECT,
    EINVAL,
    ENOSYS,
    EPERM,
    MADVISE,
    PIDFD_OPEN,
    PROCESS_MADVISE,
    SETUP,
    Gather,
    Table,
    refused,
)

MIB = 2**20


BAD_TRACES: dict[str, tuple[dict[str, Any], str]] = {
    "magic": ({"magic": b"CBTRACE2"}, "does not begin with CBTRACE1"),
    "no rows": ({"rows": 0}, "the table has no rows"),
    "no bytes": ({"row_bytes": 0}, "the rows of the table have no bytes"),
    "no gathers": ({"count": 0}, "the trace holds no gathers"),
    "more gathers": ({"count": 4}, "316 bytes long, but its header says 320"),
    "fewer gathers": ({"count": 2}, "316 bytes long, but its header says 312"),
    "very many gathers": ({"count": 2**63}, "gathers cannot be"),
    "row beyond": ({"rows": 2}, "gather 1 is of row 2, but the table has 2 rows"),
    "no name": ({"name": b""}, "no base name"),
    "a path": ({"name": b"../other.gguf"}, "no base name"),
    "unended name": ({"name": b"x" * 256}, "no base name"),
    "other file": ({"name": b"other.gguf"}, "other.gguf: No such file"),
    "short file": ({"rows": 9001}, "tells of a table of 9001 rows of 1001 bytes from byte 4128"),
    "far offset": ({"offset": 2**64 - 1}, "the file is cut short"),
    "huge table": ({"rows": 2**60}, "the file is cut short"),
}


@pytest.mark.parametrize("what", BAD_TRACES)
@pytest.mark.parametrize("strategy", ["random+readahead", "uring-direct"])
def test_a_wrong_trace_is_named(gather: Gather, table: Table, what: str, strategy: str) -> None:
    other, words = BAD_TRACES[what]
    done = gather.run(table, table.trace([0, 2, 5], **other), "--strategy", strategy)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_width_or_a_short_header_is_named(gather: Gather, table: Table) -> None:
    good = table.trace([0])
    odd = good[:40] + struct.pack("<I", 2) + good[44:]
    assert "2 bytes an index; 4 or 8" in gather.run(table, odd).stderr
    for size in (0, 303):
        done = gather.run(table, good[:size])
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{size} bytes are too few for a trace" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [("--strategy fast", "--strategy fast: one of plain skip random"),
     ("--batch 0", "--batch 0: a whole number from 1"),
     ("--ahead -1", "--ahead -1: a whole number"),
     ("--depth 9x", "--depth 9x: a whole number"),
     ("more", "more: what is this argument for?"),
     ("--fast", "--fast")],
)  # fmt: skip
def test_wrong_usage(gather: Gather, table: Table, options: str, words: str) -> None:
    done = gather.run(table, table.trace([0]), *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_result_that_cannot_be_written_is_a_failure(
    gather: Gather, gather_program: Path, table: Table
) -> None:
    feed = gather.folder / "feed"
    feed.write_bytes(table.trace([0]))
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [gather_program, "--model", table.path, "--feed", feed],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "standard output: No space left" in done.stderr


@pytest.mark.parametrize(
    ("strategy", "call"),
    [("random", "madvise(MADV_RANDOM)"),
     ("random+readahead", "madvise(MADV_RANDOM)"),
     ("plain+readahead", "madvise(MADV_WILLNEED)"),
     ("populate", "madvise(MADV_RANDOM)"),
     ("pread", "posix_fadvise(POSIX_FADV_RANDOM)"),
     ("uring", "posix_fadvise(POSIX_FADV_RANDOM)")],
)  # fmt: skip
def test_advice_that_fails_is_counted_and_the_run_goes_on(
    gather: Gather, table: Table, indices: np.ndarray, shim: Path, strategy: str, call: str
) -> None:
    trace = table.trace(indices)
    result = gather.result(
        table, trace, "--strategy", strategy, LD_PRELOAD=str(shim), NO_ADVICE="1"
    )
    assert result["hint_errors"] == result["hints"] > 0
    assert result["hint_error"] == f"{call}: Invalid argument"
    assert result["checksum"] == table.checksum(indices)


def test_a_process_madvise_that_fails_is_counted(
    gather: Gather, table: Table, indices: np.ndarray, shim: Path
) -> None:
    result = gather.result(
        table, table.trace(indices), "--strategy", "process_madvise", "--batch", 100,
        LD_PRELOAD=str(shim), **refused(PROCESS_MADVISE, EINVAL),
    )  # fmt: skip
    assert result["hint_errors"] == -(-len(indices) // 100)
    assert result["hint_error"] == "process_madvise(MADV_WILLNEED): Invalid argument"
    assert result["checksum"] == table.checksum(indices)


@pytest.mark.parametrize(
    ("strategy", "number", "error", "words"),
    [("uring", SETUP, ENOSYS, "this kernel has no io_uring"),
     ("uring-direct", SETUP, EPERM, "kernel.io_uring_disabled"),
     ("process_madvise", PIDFD_OPEN, ENOSYS, "this kernel has no pidfd_open: Linux 5.3"),
     ("process_madvise", PROCESS_MADVISE, ENOSYS, "has no process_madvise: Linux 5.10"),
     ("process_madvise", PROCESS_MADVISE, EPERM, "CAP_SYS_NICE"),
     ("populate", MADVISE, EINVAL, "has no MADV_POPULATE_READ: Linux 5.14")],
)  # fmt: skip
def test_a_kernel_without_the_call_is_unsupported(
    gather: Gather, table: Table, shim: Path, strategy: str, number: int, error: int, words: str
) -> None:
    advice = {"NO_ADVICE": "1"} if number == MADVISE else {}
    refusal = gather.refusal(
        table, table.trace([0, 1]), "--strategy", strategy,
        LD_PRELOAD=str(shim), **refused(number, error), **advice,
    )  # fmt: skip
    assert list(refusal) == ["unsupported"]
    assert words in refusal["unsupported"]


@pytest.mark.parametrize("strategy", [*DIRECT, "fio"])
def test_a_table_in_memory_has_no_direct_reads(gather: Gather, table: Table, strategy: str) -> None:
    copy = Table(Path("/dev/shm") / f"gather-{os.getpid()}-é.gguf")  # a tmpfs
    shutil.copyfile(table.path, copy.path)
    try:
        trace = copy.trace([1, 2, 3])
        refusal = gather.refusal(copy, trace, "--strategy", strategy)
        mapped = gather.result(copy, trace, "--strategy", "random+readahead")
    finally:
        copy.path.unlink()
    assert (
        f"{copy.path}: its file system has no O_DIRECT (it is in memory" in (refusal["unsupported"])
    )
    assert mapped["checksum"] == table.checksum([1, 2, 3])


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("plain", "SIGBUS: a mapped page of"), ("random+readahead", "SIGBUS: a mapped page of"),
     ("pread", "amid the table: the file was shortened"),
     ("uring-direct", "amid the table: the file was shortened")],
)  # fmt: skip
def test_a_file_shortened_after_the_check_is_one_clear_line(
    gather_program: Path, table: Table, tmp_path: Path, strategy: str, words: str
) -> None:
    options = ["--strategy", strategy]
    done = run_on_shortened(gather_program, table, tmp_path, [0, table.rows - 1], options, {})
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert str(tmp_path / table.path.name) in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_are_advised_so_far_ahead_of_the_first_touch(
    gather_program: Path, table: Table, tmp_path: Path, shim: Path, ahead: int
) -> None:
    rows = table.rows - 1 - np.arange(50) * 100  # the first touch ends the program
    options = ["--strategy", "random+readahead", "--batch", "4", "--ahead", str(ahead)]
    environment = {"LD_PRELOAD": str(shim), "COUNT": str(tmp_path / "count")}
    done = run_on_shortened(gather_program, table, tmp_path, rows, options, environment)
    assert "SIGBUS" in done.stderr
    ranges = len(table.ranges(rows[: 4 * (ahead + 1)], 4))
    assert (tmp_path / "count").stat().st_size == 1 + ranges


def run_on_shortened(
    program: Path,
    table: Table,
    folder: Path,
    rows: Sequence[int] | np.ndarray,
    options: list[str],
    environment: dict[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run the program on a copy of the table that is shortened between its check and its use."""
    copy = Table(folder / table.path.name)
    shutil.copyfile(table.path, copy.path)
    trace = copy.trace(rows)
    feed = folder / "pipe"
    os.mkfifo(feed)
    command: list[str | Path] = [program, "--model", copy.path, "--feed", feed, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        with feed.open("wb") as pipe:
            pipe.write(trace[:-8])
            pipe.flush()
            reads = options[1] in ("pread", "uring-direct")
            wait_until_checked(running.pid, copy.path, mapped=not reads)
            os.truncate(copy.path, 2 * MIB)
            pipe.write(trace[-8:])
        out, err = running.communicate(timeout=60)
    return subprocess.CompletedProcess(command, running.returncode, out, err)


def wait_until_checked(pid: int, path: Path, *, mapped: bool) -> None:
    """Wait until the program sleeps for its trace with the file open, and mapped if it maps it."""
    process = Path(f"/proc/{pid}")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        is_open = any(link.exists() and link.samefile(path) for link in process.glob("fd/*"))
        sleeps = (process / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "S"
        is_mapped = path.name in (process / "maps").read_text(encoding="utf-8")
        if is_open and sleeps and (is_mapped or not mapped):
            return
        time.sleep(0.01)
    pytest.fail("the program did not come to its trace")
