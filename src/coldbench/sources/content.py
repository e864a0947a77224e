"""What a source consists of: the files of an sdist's sub-folder or of a local folder."""

import io
import logging
import os
import posixpath
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coldbench.common.errors import ColdbenchError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One file or symbolic link (its content is the target) at a relative POSIX `path`.

    `mode` is one of git's three: 100644, 100755, 120000. `stream` is read once, in order.
    """

    path: str
    mode: str
    size: int
    stream: IO[bytes]


def clean_environment() -> dict[str, str]:
    """Return the environment without what would point git at another repository or setting."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return kept | {
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }


# --- sdists -------------------------------------------------------------------------------------


def sdist_entries(archive: Path, subfolder: str) -> Iterator[Entry]:
    """Yield the files below `subfolder` of an sdist (whose one top folder is left off).

    Nothing is unpacked: a member outside `subfolder` is not touched, and one that would lead out
    of it is refused. Raises ColdbenchError for such members, a damaged archive and a sub-folder
    that is not there.
    """
    inside = posixpath.normpath(subfolder)
    found = False
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = _below(member.name, inside)
                if path is None or member.isdir():
                    continue
                found = True
                yield _member(archive, tar, member, path)
    except (tarfile.TarError, EOFError, OSError, KeyError) as error:
        raise ColdbenchError(f"{archive}: not a readable tar archive: {error}") from error
    if not found:
        raise ColdbenchError(f"{archive}: has no files in the sub-folder {subfolder}")


def _below(name: str, subfolder: str) -> str | None:
    """Return where a member lies below the sub-folder; None if it is not source in it."""
    path = posixpath.join("/", *name.split("/")[1:])
    if subfolder != ".":
        if not path.startswith(f"/{subfolder}/"):
            return None
        path = path.removeprefix(f"/{subfolder}")
    return None if ".git" in path.split("/") or path == "/" else path[1:]


def _member(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> Entry:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise ColdbenchError(f"{archive}: member {member.name} leads out of the archive; refused")
    if member.issym():
        if leads_out(path, member.linkname):
            raise ColdbenchError(
                f"{archive}: link {member.name} -> {member.linkname} leads out of the source; "
                "refused"
            )
        return _link(path, member.linkname)
    stream = tar.extractfile(member)
    if stream is None:
        raise ColdbenchError(f"{archive}: member {member.name} is no file or link; refused")
    # A hard link has the size of the member it names.
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    return Entry(path, "100755" if member.mode & 0o111 else "100644", size, stream)


def leads_out(path: str, target: str) -> bool:
    """Tell whether a symbolic link at the relative `path` may point out of its source.

    `..` after a name counts as that: what the name stands for may be a link elsewhere.
    """
    parts = [part for part in target.split("/") if part not in {"", "."}]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or up > path.count("/") or ".." in parts[up:]


def _link(path: str, target: str) -> Entry:
    data = os.fsencode(target)
    return Entry(path, "120000", len(data), io.BytesIO(data))


# --- folders ------------------------------------------------------------------------------------


def folder_entries(folder: Path) -> Iterator[Entry]:
    """Yield the files of a local source folder, which is only read.

    A git checkout gives its tracked files as they are on disk and new ones that it does not
    ignore (so neither build outputs nor models); any other folder gives all that is in it.
    A link that leads out of the folder is replaced by the file it names.
    Raises ColdbenchError where the folder or a file cannot be read.
    """
    found = False
    try:
        for path in _checkout(folder) if (folder / ".git").exists() else _everything(folder):
            entry = _file(folder, path)
            if entry is not None:
                found = True
                with entry.stream:
                    yield entry
    except OSError as error:
        raise ColdbenchError(f"{error.filename or folder}: {error.strerror}") from error
    if not found:
        raise ColdbenchError(f"{folder}: has no files; a build's folder holds the engine's source")


def checkout_commit(folder: Path) -> tuple[str, str] | None:
    """Return the full commit that a folder has checked out and the commit's tree hash.

    None where the folder is not the top of a git checkout, or has no commit.
    """
    if not (folder / ".git").exists():
        return None
    result = _git(folder, "rev-parse", "HEAD^{commit}", "HEAD^{tree}")
    commit, _, tree = result.stdout.decode().strip().partition("\n")
    return (commit, tree) if result.returncode == 0 and tree else None


def _git(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    # A named repository is not subject to git's ownership check, and no hook of it is run.
    command = ["git", f"--git-dir={folder / '.git'}", f"--work-tree={folder}"]
    command += ["-c", "core.fsmonitor=false", *arguments]
    return subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, check=False
    )


def _checkout(folder: Path) -> Iterator[str]:
    result = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if result.returncode != 0:
        # A dangling .git file, as sdists of projects with submodules have it.
        yield from _everything(folder)
        return
    for name in sorted({name.rstrip(b"/") for name in result.stdout.split(b"\0") if name}):
        path = os.fsdecode(name)
        whole = folder / path
        if whole.is_dir() and not whole.is_symlink():  # a submodule, or a checkout of its own
            below = _checkout(whole) if (whole / ".git").exists() else _everything(whole)
            yield from (f"{path}/{inner}" for inner in below)
        else:
            yield path


def _everything(folder: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if name != ".git")
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*files, *links]):
            if name != ".git":
                yield os.path.relpath(os.path.join(parent, name), folder)


def _file(folder: Path, path: str) -> Entry | None:
    whole = folder / path
    try:
        status = whole.lstat()
    except FileNotFoundError:  # tracked, and deleted by the user
        return None
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(whole)
        if not leads_out(path, target):
            return _link(path, target)
        if not whole.is_file():
            log.info("%s: left out, since it links to %s outside of the source", whole, target)
            return None
        status = whole.stat()
    elif not stat.S_ISREG(status.st_mode):
        log.info("%s: left out, since it is no file", whole)
        return None
    mode = "100755" if status.st_mode & 0o111 else "100644"
    return Entry(path, mode, status.st_size, whole.open("rb"))
