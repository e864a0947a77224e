"""Cold is certified only where it is true: real files, file systems and processes."""

import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.certificate import (
    NotColdError,
    check_certifiable,
    make_cold,
    never_cold,
)
from coldbench.measure.pagecache import (
    CACHESTAT,
    PAGE_BYTES,
    FileSystem,
    Query,
    evict,
    filesystem,
    resident_bytes,
)

MIB = 2**20
SIZE = 32 * MIB
SHARED = Path("/dev/shm")
NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 32 MiB, on a file system that can be cold."""
    if never_cold(filesystem(tmp_path)):
        pytest.skip("the temporary folder is not on a disk: set TMPDIR to one that is")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_the_certificate_tells_how_each_file_was_made_cold(file: Path) -> None:
    odd = file.with_name("odd")
    odd.write_bytes(b"x" * 100)
    empty = file.with_name("empty")
    empty.touch()
    certificate = make_cold([file, odd, empty])
    assert [resident_bytes(path) for path in (file, odd, empty)] == [0, 0, 0]
    assert json.loads(json.dumps(certificate)) == certificate
    assert certificate["state"] == "cold"
    assert certificate["took_s"] > 0
    first, second, third = certificate["files"]
    assert first == {
        "name": "file",
        "bytes": SIZE,
        "filesystem": filesystem(file).type,
        "method": first["method"],
        "holes_bytes": 0,
        "found_bytes": SIZE,
        "attempts": first["attempts"],
        "control_seen_bytes": PAGE_BYTES,
        "control_left_bytes": 0,
        "left_bytes": 0,
    }
    assert first["method"] in {"cachestat", "mincore"}
    assert second["control_seen_bytes"] == second["bytes"] == 100
    assert third["bytes"] == 0
    assert "control_seen_bytes" not in third


def test_a_query_that_always_answers_nothing_is_caught(file: Path) -> None:
    liar = Query("cachestat", lambda descriptor, offset, length: 0)
    with pytest.raises(NotColdError, match=r"file: .*cachestat does not see a page that was") as c:
        make_cold([file], query=liar)
    assert c.value.kind == "query"


def test_what_comes_back_while_other_shards_are_evicted_is_caught(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"x" * MIB)

    def reading_the_first(descriptor: int, offset: int, length: int) -> int:
        if os.fstat(descriptor).st_size == MIB:
            file.read_bytes()
        return CACHESTAT.pages(descriptor, offset, length)

    try:
        make_cold([file], query=CACHESTAT)
    except ColdbenchError:
        pytest.skip("this kernel has no cachestat(2)")
    with pytest.raises(NotColdError, match=rf"{file}: cannot be made cold: {SIZE:,} bytes stay"):
        make_cold([file, other], query=Query("cachestat", reading_the_first))


HOLDER = """
import mmap, os, sys
f = open(sys.argv[1], "rb")
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
sum(m[::4096]) if sys.argv[2] == "touch" else None
print("ready", flush=True)
sys.stdin.read()
"""
WRITER = """
import os, sys, threading
d = os.open(sys.argv[1], os.O_RDWR)
threading.Thread(target=sys.stdin.read).start()
print("ready", flush=True)
while threading.active_count() > 1:
    os.pwrite(d, b"w" * 65536, 0)
"""
READER = """
import os, sys
d = os.open(sys.argv[1], os.O_RDONLY)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(script: str, *arguments: str | Path) -> Iterator[int]:
    """Run a script that says when it is ready, until its stdin is closed; yield its process id."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.communicate(timeout=20)


@dataclass
class Liar:
    """A file that a naive tool takes for cold: how to ask about it, and what has to be said."""

    path: Path
    kind: str
    says: str
    user: int = 0
    within: tuple[str, ...] = ()


@contextmanager
def unwritable(file: Path) -> Iterator[Liar]:
    if os.getuid() != 0:
        pytest.skip("to become another user needs root")
    with tempfile.TemporaryDirectory(dir=file.parents[3]) as folder:  # tmp_path is root's alone
        Path(folder).chmod(0o755)
        other = Path(folder) / "file"
        shutil.copy(file, other)
        other.chmod(0o644)
        evict([other])  # it is cold, but mincore would say all resident
        yield Liar(other, "permission", r"no write permission on it; own the file", user=NOBODY)


@contextmanager
def in_memory() -> Iterator[Path]:
    if not SHARED.is_dir() or filesystem(SHARED).type != "tmpfs" or not os.access(SHARED, os.W_OK):
        pytest.skip("/dev/shm is no tmpfs that may be written")
    path = SHARED / f"coldbench-test-{os.getpid()}"
    try:
        path.write_bytes(b"x" * MIB)
        yield path
    finally:
        path.unlink()


@contextmanager
def tmpfs(file: Path) -> Iterator[Liar]:
    with in_memory() as path:
        yield Liar(path, "memory", r"lives in memory \(tmpfs at /dev/shm\); move it to a disk")


@contextmanager
def symlink(file: Path) -> Iterator[Liar]:
    with in_memory() as path:
        link = file.with_name("link")
        link.symlink_to(path)
        says = rf"^{link} \(a link to {path}\): cannot be cold: it lives in memory \(tmpfs at"
        yield Liar(link, "memory", says)


@contextmanager
def mapped(file: Path) -> Iterator[Liar]:
    with running(HOLDER, file, "touch") as pid:
        says = rf"{SIZE:,} bytes stay in the page cache, mapped by process {pid} \(python[^)]*\), "
        yield Liar(file, "mapped", says + rf"{SIZE:,} bytes; end that")


@contextmanager
def dirty(file: Path) -> Iterator[Liar]:
    with running(WRITER, file) as pid:
        says = rf"cannot be certified cold: open for writing in process {pid} \(python"
        yield Liar(file, "dirty", says)


def unshared() -> tuple[str, ...]:
    if not shutil.which("unshare") or os.getuid() != 0:
        pytest.skip("mounting needs root and unshare(1)")
    return ("unshare", "--mount")


def overlaid(folder: Path) -> tuple[str, ...]:
    """Return what to run a command by, so that it sees folder/merged over folder/lower."""
    layers = {name: folder / name for name in ("lower", "upper", "work", "merged")}
    for layer in layers.values():
        layer.mkdir(exist_ok=True)
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format(**layers)
    mount = f"mount -t overlay overlay -o {options} {layers['merged']}"
    return (*unshared(), "sh", "-c", f'{mount} || exit 99; exec "$@"', "sh")


@contextmanager
def overlay(file: Path) -> Iterator[Liar]:
    within = overlaid(file.parent)
    below = file.rename(file.parent / "lower/file")
    elsewhere = file.parent / "other-name"
    elsewhere.hardlink_to(below)
    with running(HOLDER, elsewhere, "touch") as pid:  # in another mount namespace, too
        says = rf"of {below} below overlay at {file.parent}/merged, mapped by process {pid} \("
        yield Liar(file.parent / "merged/file", "overlay", says, within=within)


CERTIFY = """
import os, sys
from pathlib import Path
from coldbench.measure.certificate import NotColdError, make_cold
from coldbench.measure.pagecache import CACHESTAT
path, user, query = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] and CACHESTAT or None
user and (os.setgroups([]), os.setgid(user), os.setuid(user))
try:
    print("certified", make_cold([path], query=query)["files"])
except NotColdError as error:
    print(error.kind)
    print(error)
"""


def certify(path: Path, user: int, within: tuple[str, ...], *query: str) -> list[str]:
    """Ask for a certificate in a process of its own; return what it says, line by line."""
    command = [*within, sys.executable, "-c", CERTIFY, str(path), str(user), *query]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"this cannot be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("lies", [unwritable, tmpfs, overlay, dirty, mapped, symlink])
def test_a_cache_liar_is_refused_with_the_right_reason(
    lies: Callable[[Path], AbstractContextManager[Liar]], file: Path
) -> None:
    with lies(file) as liar:
        kind, message = certify(liar.path, liar.user, liar.within)
    assert kind == liar.kind
    assert message.startswith(f"{liar.path}")
    assert re.search(liar.says, message), message


def test_once_the_liar_has_ended_the_file_can_be_cold(file: Path) -> None:
    for lies in (mapped, dirty):
        with lies(file) as liar:
            assert certify(liar.path, liar.user, liar.within)[0] == liar.kind
        assert make_cold([file])["files"][0]["left_bytes"] == 0


def test_the_control_catches_cachestat_on_overlayfs_where_mincore_certifies(file: Path) -> None:
    within = overlaid(file.parent)
    path = file.parent / "merged/file"
    file.rename(file.parent / "lower/file")
    (said,) = certify(path, 0, within)
    assert said.startswith("certified")
    assert "'method': 'mincore'" in said
    assert f"'control_seen_bytes': {PAGE_BYTES}" in said
    kind, message = certify(path, 0, within, "cachestat")
    assert kind == "query"
    assert "cachestat does not see a page that was just read" in message
    assert "overlay at " in message


def test_a_mapping_below_an_overlay_whose_layers_cannot_be_seen_is_named(file: Path) -> None:
    # Mounted by relative names, as a container's layers are out of its sight.
    below = file.parent / "lower/file"
    absolute = overlaid(file.parent)
    within = tuple(word.replace(f"{file.parent}/", "") for word in absolute)
    file.rename(below)
    here = ("sh", "-c", f'cd "{file.parent}" && exec "$@"', "sh")
    with running(HOLDER, below, "touch") as pid:
        kind, message = certify(file.parent / "merged/file", 0, (*here, *within))
    assert kind == "mapped"
    assert f"mapped by process {pid} (python" in message


def test_a_file_behind_fuse_is_refused(file: Path) -> None:
    mount = file.with_name("mount")
    mount.mkdir()
    fuse = str(Path(__file__).with_name("fuse_file.py"))
    kind, message = certify(mount / "file", 0, (*unshared(), sys.executable, fuse, str(mount)))
    assert kind == "network"
    assert f"fuse at {mount} is cached by its server as well" in message


@pytest.mark.parametrize(
    "name", ["nfs4", "cifs", "9p", "virtiofs", "ceph", "fuse.sshfs", "fuseblk"]
)
def test_no_file_system_with_a_server_is_certified(name: str) -> None:
    kind, reason = never_cold(FileSystem(name, "server:/models", "/models")) or ("", "")
    assert kind == "network"
    assert f"{name} at /models" in reason
    assert never_cold(FileSystem("ext4", "/dev/sda1", "/")) is None


def test_a_mapping_that_holds_no_page_does_no_harm(file: Path) -> None:
    evict([file])
    with running(HOLDER, file, "map only"), running(READER, file):
        assert make_cold([file])["files"][0]["left_bytes"] == 0


def test_a_mapping_of_our_own_is_named_too(file: Path) -> None:
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as held:
        assert len(held[::PAGE_BYTES]) > 0
        with pytest.raises(NotColdError, match=rf"mapped by process {os.getpid()} "):
            make_cold([file])


def test_looking_at_a_file_evicts_nothing(file: Path) -> None:
    assert check_certifiable(file) == filesystem(file)
    assert resident_bytes(file) == SIZE
    with pytest.raises(ColdbenchError, match="is not a regular file"):
        check_certifiable(file.parent)
    with pytest.raises(ColdbenchError, match=r"absent: cannot be read: No such file"):
        make_cold([file.with_name("absent")])
