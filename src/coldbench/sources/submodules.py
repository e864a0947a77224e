"""The files of a commit or a merge in a store, those of its submodules among them."""

import io
import logging
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.sources.content import Entry, clean_environment, leads_out
from coldbench.sources.git import Store, is_local, location, store

log = logging.getLogger(__name__)

_LINK, _SUBMODULE = "120000", "160000"
_REACHING_OUT = frozenset({"", ".", "..", ".git"})  # names of forged trees alone


@dataclass(frozen=True)
class Content:
    """A tree in a store with its submodules (path, url, commit), wherever they were nested.

    One without a url in .gitmodules (an accident: git itself refuses it) is an empty folder.
    """

    parts: list[tuple[str, Store, str]] = field(default_factory=list)
    submodules: list[dict[str, str]] = field(default_factory=list)

    def check(self) -> None:
        """Raise ColdbenchError for a file or link that leads out of the source, or is lost."""
        for prefix, where, tree in self.parts:
            _check(prefix, where, tree)

    def entries(self) -> Iterator[Entry]:
        """Yield every file."""
        for prefix, where, tree in self.parts:
            yield from _files(prefix, where, tree)

    @property
    def single(self) -> Store | None:
        """The store that holds the whole content as one tree; None with submodules."""
        return self.parts[0][1] if len(self.parts) == 1 else None


def content(where: Store, tree: str, place: str, cache: Path) -> Content:
    """Return the whole content of a tree of the repository at `place`; submodules are fetched.

    Raises ColdbenchError for a submodule that cannot be had.
    """
    found = Content()
    _gather(found, "", where, tree, place, cache)
    return found


def _gather(found: Content, prefix: str, where: Store, tree: str, place: str, cache: Path) -> None:
    found.parts.append((prefix, where, tree))
    urls = _urls(where, tree)
    for mode, commit, path in _listed(where, tree):
        if mode != _SUBMODULE:
            continue
        if path not in urls:
            log.warning("%s: the submodule %s has no url; its folder stays empty", place, path)
            continue
        url = _absolute(place, urls[path])
        reaches_in = is_local(url) and not is_local(place)
        if url.startswith("-") or re.match(r"\w+::", url) or reaches_in:
            raise ColdbenchError(f"{place}: the submodule {path} comes from {url}; refused")
        inner = location(url)
        try:
            with store(cache, inner, "tips") as below:
                below.want(inner, commit)
        except ColdbenchError as error:
            raise ColdbenchError(f"submodule {path}: {error}") from None
        found.submodules.append({"path": prefix + path, "url": inner, "commit": commit})
        _gather(found, f"{prefix}{path}/", below, below.tree(commit), inner, cache)


def _listed(where: Store, tree: str) -> Iterator[tuple[str, str, str]]:
    for line in where.git("ls-tree", "-r", "-z", tree).split(b"\0"):
        if line:
            facts, _, path = line.partition(b"\t")
            mode, _, name = facts.decode().split()
            yield mode, name, os.fsdecode(path)


def _urls(where: Store, tree: str) -> dict[str, str]:
    """Return the url of each submodule's path (gitmodules(5))."""
    pattern = r"^submodule\..*\.(path|url)$"
    shown = where.read("config", "-z", "--blob", f"{tree}:.gitmodules", "--get-regexp", pattern)
    named: dict[str, dict[str, str]] = {}
    for item in filter(None, shown.split("\0")):
        key, _, value = item.partition("\n")
        name, _, kind = key.removeprefix("submodule.").rpartition(".")
        named.setdefault(name, {})[kind] = value
    return {one["path"]: one["url"] for one in named.values() if {"path", "url"} <= one.keys()}


def _absolute(place: str, url: str) -> str:
    """Return a submodule's url; one that begins with ./ or ../ is relative to the repository's."""
    if not url.startswith(("./", "../")):
        return url
    base = place.rstrip("/")
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            base = base[: max(base.rfind("/"), base.rfind(":"), 0)]
        url = url.partition("/")[2]
    separator = "" if base.endswith(":") else "/"
    return f"{base}{separator}{url}"


def _check(prefix: str, where: Store, tree: str) -> None:
    files = [one for one in _listed(where, tree) if one[0] != _SUBMODULE]
    names = "".join(f"{name}\n" for _, name, _ in files)
    known = where.git("cat-file", "--batch-check", given=names.encode()).split(b"\n")
    for (mode, name, path), said in zip(files, known, strict=False):
        whole = prefix + path
        if _REACHING_OUT & {part.lower() for part in path.split("/")}:
            raise ColdbenchError(f"the file {whole} leads out of the source; refused")
        if said.endswith(b" missing"):
            raise ColdbenchError(f"{where.folder}: lacks the file {path}; delete this folder")
        if mode == _LINK:
            target = os.fsdecode(where.git("cat-file", "blob", name))
            if leads_out(whole, target):
                raise ColdbenchError(f"link {whole} -> {target} leads out of the source; refused")


def _files(prefix: str, where: Store, tree: str) -> Iterator[Entry]:
    # One process gives all files: git-cat-file(1), --batch.
    process = subprocess.Popen(
        ["git", "cat-file", "--batch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment() | {"GIT_DIR": str(where.folder)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for mode, name, path in _listed(where, tree):
            if mode == _SUBMODULE:
                continue
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
            head = process.stdout.readline().split()
            if len(head) != 3:
                raise ColdbenchError(f"{where.folder}: lacks the file {path}; delete this folder")
            data = process.stdout.read(int(head[2]))
            process.stdout.read(1)
            mode = mode if mode in {_LINK, "100755"} else "100644"
            yield Entry(prefix + path, mode, len(data), io.BytesIO(data))
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()
