"""What the tests of the gather kernel share: a table, traces of it, and a run of the program."""

import json
import mmap
import os
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
RANGE_PAGES = (128 << 10) // PAGE
PRIME = 0x100000001B3
WORD = 2**64
DIRECT = ("pread-direct", "uring-direct")
SETUP, MADVISE, PIDFD_OPEN, PROCESS_MADVISE, CACHESTAT = 425, 28, 434, 440, 451
EPERM, EINVAL, ENOSYS = 1, 22, 38


@dataclass(frozen=True)
class Table:
    """A file with a table that begins amid a page and ends, amid a page, with the file."""

    path: Path
    offset: int = 4128
    row_bytes: int = 1001
    rows: int = 9000

    def trace(self, indices: Sequence[int] | np.ndarray, **other: Any) -> bytes:
        width = other.get("index_bytes", 4)
        name: bytes = other.get("name", self.path.name.encode())
        magic: bytes = other.get("magic", b"CBTRACE1")
        return (
            magic
            + struct.pack(
                "<4Q2I",
                other.get("offset", self.offset),
                other.get("row_bytes", self.row_bytes),
                other.get("rows", self.rows),
                other.get("count", len(indices)),
                width,
                1,
            )
            + name.ljust(256, b"\0")
            + np.asarray(indices, dtype="<u4" if width == 4 else "<u8").tobytes()
        )

    def checksum(self, indices: Sequence[int] | np.ndarray) -> str:
        data, total = self.path.read_bytes(), 0
        weights = 2 * np.arange(-(-self.row_bytes // 8), dtype=np.uint64) + 1
        for row in indices:
            start = self.offset + int(row) * self.row_bytes
            padded = data[start : start + self.row_bytes].ljust(8 * len(weights), b"\0")
            words = np.frombuffer(padded, dtype="<u8")
            total = (total * PRIME + int((words * weights).sum(dtype=np.uint64))) % WORD
        return f"{total:016x}"

    def pages(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        starts = self.offset + np.asarray(indices, dtype=np.int64) * self.row_bytes
        ends = (starts + self.row_bytes - 1) // PAGE
        return np.unique(np.concatenate([starts // PAGE, ends]))

    def ranges(self, indices: np.ndarray, batch: int) -> list[int]:
        """The length in pages of each range that is read or advised, batch by batch."""
        lengths = []
        for start in range(0, len(indices), batch):
            pages = self.pages(indices[start : start + batch])
            for run in np.split(pages, np.flatnonzero(np.diff(pages) > 1) + 1):
                full, rest = divmod(len(run), RANGE_PAGES)
                lengths += [RANGE_PAGES] * full + [rest] * (rest > 0)
        return lengths

    def evict(self) -> None:
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def refused(number: int, error: int) -> dict[str, str]:
    return {"REFUSED": str(number), "ERRNO": str(error)}


@dataclass(frozen=True)
class Gather:
    """Runs the program on a trace."""

    program: Path
    folder: Path

    def run(
        self, table: Table, trace: bytes, *options: object, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        feed = self.folder / "feed"
        feed.write_bytes(trace)
        model = table.path.with_name("model.gguf")
        return subprocess.run(
            [self.program, "--model", model, "--feed", feed, *(str(option) for option in options)],
            env={"PATH": os.environ["PATH"], **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def result(
        self, table: Table, trace: bytes, *options: object, **environment: str
    ) -> dict[str, Any]:
        done = self.run(table, trace, *options, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1
        return dict(json.loads(done.stdout))

    def refusal(
        self, table: Table, trace: bytes, *options: object, **environment: str
    ) -> dict[str, Any]:
        done = self.run(table, trace, *options, **environment)
        assert (done.returncode, done.stderr) == (3, "")
        return dict(json.loads(done.stdout))
