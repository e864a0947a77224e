"""A work tree whose content is set as a whole, never edited in place.

Builds of one source family share a work tree, so that they share objects and paths. A private git
store beside it holds every content it ever had: patches are applied to an index of the store, and
the work tree only ever changes from one complete content to another, in the files that differ.
The store is ours alone, so neither the user's git settings nor a repository around the source or
the cache can change what happens.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coldbench.common.children import die_with_parent
from coldbench.common.errors import ColdbenchError
from coldbench.sources.content import Entry, clean_environment

_SETTINGS = {
    "core.autocrlf": "false",
    "core.bare": "false",
    "core.compression": "1",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "gc.auto": "0",
}
# Files come out as they went in, whatever the source's own .gitattributes say.
_ATTRIBUTES = "* -text !eol !ident !filter !working-tree-encoding\n"


@dataclass(frozen=True)
class Patch:
    """A patch's name for messages, and its content."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 (hex) of the content."""
        return hashlib.sha256(self.content).hexdigest()


class Tree:
    """The work tree `folder`/src and its store; the caller holds the family's lock."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("git") is None:
            raise ColdbenchError("git is not installed; install the package git")
        self.work = folder / "src"
        self._store = folder / "store.git"
        self._folder = folder
        self.work.mkdir(parents=True, exist_ok=True)
        if not all(lender.exists() for lender in self._lenders()):
            shutil.rmtree(self._store)
        if not self._store.exists():
            new = self._store.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            self._git("init", "--bare", "--quiet", "--template=", str(new), store=False)
            new.rename(self._store)
        (self._store / "info").mkdir(exist_ok=True)
        (self._store / "info" / "attributes").write_text(_ATTRIBUTES)
        # The lock is ours, so what a killed git left is stale.
        temporary = (self._store / "objects" / "pack").glob("tmp_*")
        for stale in [*self._store.rglob("*.lock"), *temporary]:
            stale.unlink()

    def known(self, name: str) -> str | None:
        """Return the tree hash of the content stored as `name`, None if there is none."""
        listed = self._git("for-each-ref", "--format=%(tree)", f"refs/heads/{name}").stdout
        return listed.decode().strip() or None

    def add(self, name: str, entries: Iterable[Entry]) -> str:
        """Store a source's content as `name`; return its tree hash (git's, 40 hex digits)."""
        process = subprocess.Popen(
            self._command("fast-import", "--quiet", "--force", "--done", "--date-format=raw"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work,
            env=self._environment(),
            preexec_fn=die_with_parent(),
        )
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            with process.stdin as stream:
                _write_commit(stream, name, entries)
        except BrokenPipeError:
            pass  # its own message, below, says why it ended
        except BaseException:
            process.kill()
            process.wait()
            process.stderr.close()
            raise
        with process.stderr as stream:
            error = stream.read()
        if process.wait() != 0:
            raise self._failure("fast-import", error)
        tree = self.known(name)
        assert tree is not None
        return tree

    def borrow(self, name: str, tree: str, store: Path) -> str:
        """Store the content `tree` of a bare repository as `name`; return its hash.

        Nothing is copied: what is borrowed from a store that is gone later has to be added again.
        """
        lenders = self._lenders()
        if store not in lenders:
            text = "".join(f"{path}/objects\n" for path in [*lenders, store])
            self._alternates.write_text(text, "utf-8", "surrogateescape")
        who = ("-c", "user.name=-", "-c", "user.email=-")
        commit = self._git(*who, "commit-tree", "-m", "-", tree).stdout.decode().strip()
        self._git("update-ref", f"refs/heads/{name}", commit)
        return tree

    @property
    def _alternates(self) -> Path:
        # gitrepository-layout(5)
        return self._store / "objects" / "info" / "alternates"

    def _lenders(self) -> list[Path]:
        if not self._alternates.exists():
            return []
        lines = self._alternates.read_text("utf-8", "surrogateescape").splitlines()
        return [Path(line).parent for line in lines]

    def patched(self, tree: str, patches: Iterable[Patch], *, build: str, source: str) -> list[str]:
        """Apply `patches` in order to the content `tree`; return the tree hash after each.

        The work tree is not touched. `build` and `source` are for messages. Raises ColdbenchError
        for a patch that does not apply or changes nothing.
        """
        index = self._store / "patch-index"
        self._git("read-tree", tree, index=index)
        hashes: list[str] = []
        for number, patch in enumerate(patches, start=1):
            what = f"build {build}: patch {number} ({patch.name})"
            result = subprocess.run(
                self._command("apply", "--cached", "--whitespace=nowarn", "-"),
                input=patch.content,
                capture_output=True,
                cwd=self.work,
                env=self._environment(index),
                check=False,
            )
            if result.returncode != 0:
                raise ColdbenchError(
                    f"{what} does not apply to {source}: {_condensed(result.stderr)}; mend the "
                    "patch or the order of patches"
                )
            after = self._git("write-tree", index=index).stdout.decode().strip()
            if after == (hashes[-1] if hashes else tree):
                raise ColdbenchError(f"{what} changes nothing in {source}; take it out or mend it")
            hashes.append(after)
        return hashes

    def check_out(self, tree: str) -> None:
        """Make the work tree's content `tree`: only files that differ are written."""
        self._git("read-tree", "--reset", "-u", tree)
        self._git("clean", "-ffdxq")

    def _command(self, *arguments: str) -> list[str]:
        settings = [part for pair in _SETTINGS.items() for part in ("-c", "=".join(pair))]
        return ["git", *settings, *arguments]

    def _environment(self, index: Path | None = None) -> dict[str, str]:
        return clean_environment() | {
            "GIT_DIR": str(self._store),
            "GIT_WORK_TREE": str(self.work),
            "GIT_INDEX_FILE": str(index or self._store / "index"),
        }

    def _git(
        self, *arguments: str, store: bool = True, index: Path | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        result = subprocess.run(
            self._command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=self.work,
            env=self._environment(index) if store else clean_environment(),
            check=False,
            preexec_fn=die_with_parent(),
        )
        if result.returncode != 0:
            raise self._failure(arguments[0], result.stderr)
        return result

    def _failure(self, command: str, stderr: bytes) -> ColdbenchError:
        return ColdbenchError(
            f"{self._folder}: git {command} failed: {_condensed(stderr)}; if the disk is not full, "
            "delete this folder and run the workflow again"
        )


def _write_commit(stream: IO[bytes], name: str, entries: Iterable[Entry]) -> None:
    # git-fast-import(1). The commit only carries the tree: its author and date are fixed.
    stream.write(f"commit refs/heads/{name}\ncommitter - <-> 0 +0000\n".encode())
    stream.write(b"data 0\n\ndeleteall\n")
    for entry in entries:
        stream.write(b"M %s inline %s\n" % (entry.mode.encode(), _quoted(entry.path)))
        stream.write(b"data %d\n" % entry.size)
        left = entry.size
        while left:
            chunk = entry.stream.read(min(left, 1 << 20))
            if not chunk:
                raise ColdbenchError(f"{entry.path}: changed while it was read; run again")
            stream.write(chunk)
            left -= len(chunk)
        stream.write(b"\n")
    stream.write(b"done\n")


def _quoted(path: str) -> bytes:
    raw = os.fsencode(path)
    return b'"%s"' % raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")


def _condensed(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").splitlines()
    marked = [line for line in lines if line.startswith(("error: ", "fatal: "))]
    parts = [line.partition(": ")[2] if line in marked else line for line in marked or lines]
    return "; ".join(part.strip() for part in parts if part.strip()) or "no reason given"
