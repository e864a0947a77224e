"""Which processes keep a file in the page cache, read from /proc (proc_pid_maps(5), smaps, fd)."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from coldbench.measure.pagecache import FileSystem

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
_LAYERS = {"upperdir", "lowerdir", "lowerdir+", "datadir+"}


@dataclass(frozen=True)
class Holders:
    """Processes as `process PID (NAME)`: by what they do to a file, and how many are hidden.

    Those in `mapping` have pages of it in their address space, named with their bytes;
    `hidden` processes would not be looked at.
    """

    mapping: list[str]
    writing: list[str]
    reading: list[str]
    hidden: int


def holders(files: list[Path]) -> Holders:
    """Look at all processes for those that hold one of `files`, which are names of one content.

    A mapping of which no page is in use holds nothing back from eviction and does not count.
    """
    wanted = _Wanted(files)
    found = Holders([], [], [], 0)
    hidden = 0
    for process in psutil.process_iter(["name"]):
        name = f"process {process.pid} ({process.info['name']})"
        folder = Path(f"/proc/{process.pid}")
        try:
            mapped = _mapped_bytes(folder, wanted)
            modes = _open_modes(folder, wanted)
        except PermissionError:
            hidden += 1
            continue
        except (OSError, ValueError):  # it has ended
            continue
        if mapped:
            found.mapping.append(f"{name}, {mapped:,} bytes")
        if modes - {os.O_RDONLY}:
            found.writing.append(name)
        elif modes:
            found.reading.append(name)
    return Holders(found.mapping, found.writing, found.reading, hidden)


def layer_files(path: Path, kind: FileSystem) -> list[Path]:
    """Return the files below an overlayfs that may hold the pages of `path`, as far as visible.

    The first is the one in use: the upper layer comes before the lower ones. Sources: the
    kernel's filesystems/overlayfs. Empty on other file systems.
    """
    if kind.type != "overlay":
        return []
    inside = path.resolve().relative_to(kind.mount)
    layers: dict[str, list[str]] = {}
    for option in kind.options.split(","):
        key, _, value = option.partition("=")
        if key in _LAYERS:
            layers.setdefault(key, []).extend(part for part in value.split(":") if part)
    # A relative folder is relative to where somebody once called mount.
    folders = [Path(f) for key in sorted(layers, reverse=True) for f in layers[key]]
    files = [folder / inside for folder in folders if folder.is_absolute()]
    return [file for file in files if file.is_file()]


class _Wanted:
    """Tells whether a device, inode and path of /proc stand for one of some files."""

    def __init__(self, files: list[Path]) -> None:
        self._names = {file.name for file in files}
        self.numbers = set()
        for file in files:
            facts = file.stat()
            self.numbers.add((facts.st_dev, facts.st_ino))
        self._inodes = {inode for _, inode in self.numbers}

    def __call__(self, device: str, inode: int, path: str) -> bool:
        if inode not in self._inodes:
            return False
        major, minor = (int(part, 16) for part in device.split(":"))
        # The device of an overlay or a btrfs subvolume is not the one that stat shows, and the
        # path is another in a container, so the same inode and name will do as well.
        return (os.makedev(major, minor), inode) in self.numbers or Path(path).name in self._names


def _mapped_bytes(folder: Path, wanted: _Wanted) -> int:
    # The short list first: smaps walks the page tables of the whole process.
    if not any(_is_wanted(line, wanted) for line in _lines(folder / "maps")):
        return 0
    total, ours = 0, False
    for line in _lines(folder / "smaps"):
        if _MAPPING.match(line):
            ours = _is_wanted(line, wanted)
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def _is_wanted(line: str, wanted: _Wanted) -> bool:
    # address permissions offset device inode path
    fields = line.split(maxsplit=5)
    return len(fields) == 6 and wanted(fields[3], int(fields[4]), fields[5])


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="surrogateescape").splitlines()


def _open_modes(folder: Path, wanted: _Wanted) -> set[int]:
    """Return the access modes in which a process has a file open."""
    modes = set()
    for entry in os.scandir(folder / "fd"):
        try:
            facts = os.stat(entry.path)
            if (facts.st_dev, facts.st_ino) in wanted.numbers:
                said = (folder / "fdinfo" / entry.name).read_text()
                found = re.search(r"^flags:\s*([0-7]+)$", said, re.MULTILINE)
                modes.add(int(found[1], 8) & os.O_ACCMODE if found else os.O_RDONLY)
        except OSError:  # closed meanwhile, or what cannot be looked at
            continue
    return modes
