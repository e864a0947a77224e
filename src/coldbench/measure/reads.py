"""Physical reads by a second route than the process's own counters, and whether both agree.

Sources: the kernel's admin-guide/cgroup-v1/blkio-controller, admin-guide/cgroup-v2 (io.stat),
block/stat, proc_pid_io(5).
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coldbench.common.errors import ColdbenchError
from coldbench.measure.pagecache import filesystem
from coldbench.records import Io

Route = Literal["cgroup blkio", "cgroup io", "device"]

AGREEMENT = 0.02
SLACK_BYTES = 256 << 10
"""Two windows of the kernel's default readahead (128 KiB): what one stray fault on each side of a
run can add. 2% of anything below 12.5 MiB is less than that."""

_SECTOR_BYTES = 512  # in the block layer's files, whatever the device's own sectors are
_BLOCKS = Path("/sys/dev/block")


def disk_of(path: Path) -> str | None:
    """Return `MAJOR:MINOR` of the whole disk below the file system that holds `path`, or None.

    None for file systems without a block device (tmpfs, network, overlay). A mapped device (LVM,
    dm-crypt, md, loop) is itself the disk; what lies below it is not asked, so that nothing
    counts twice. Of a file system on several devices (btrfs) it is the one that was mounted.
    """
    for number in _device_numbers(path):
        device = (_BLOCKS / f"{os.major(number)}:{os.minor(number)}").resolve()
        if (device / "partition").exists():
            device = device.parent
        with suppress(OSError):
            return (device / "dev").read_text().strip()
    return None


def _device_numbers(path: Path) -> list[int]:
    numbers = []
    with suppress(OSError):
        numbers.append(path.stat().st_dev)
    with suppress(OSError, ColdbenchError):
        # Where a file system numbers its own subvolumes (btrfs), what it was mounted from.
        numbers.append(Path(filesystem(path).device).stat().st_rdev)
    return numbers


@dataclass(frozen=True)
class Counter:
    """A running total of bytes that one disk has read: of a control group, or of everybody."""

    route: Route
    disk: str
    file: Path

    def read_bytes(self) -> int | None:
        """Return the total, or None where it cannot be had."""
        try:
            text = self.file.read_text()
        except OSError:
            return None
        if self.route == "device":
            return int(text.split()[2]) * _SECTOR_BYTES
        # A line of a group appears with the first request: none means none.
        value = r" Read (\d+)$" if self.route == "cgroup blkio" else r" .*\brbytes=(\d+)"
        found = re.search(f"^{re.escape(self.disk)}{value}", text, re.MULTILINE)
        return int(found[1]) if found else 0


def device_counter(disk: str | None) -> Counter | None:
    """Return the counter of a whole disk, which counts whoever reads from it."""
    file = _BLOCKS / str(disk) / "stat"
    return Counter("device", disk, file) if disk and file.exists() else None


def attributed(io: Io, route: Route | None, before: int | None, after: int | None) -> Io:
    """Return `io` with the reads by the second route, and whether both tell the same.

    The same means within AGREEMENT of the larger, or within SLACK_BYTES. None where one of them
    could not be had.
    """
    if route is None or before is None or after is None:
        return io
    second, own = after - before, io.read_bytes
    agree = None
    if own is not None:
        agree = abs(second - own) <= max(AGREEMENT * max(second, own), SLACK_BYTES)
    return io.model_copy(
        update={"second_read_bytes": second, "second_route": route, "attributed": agree}
    )
