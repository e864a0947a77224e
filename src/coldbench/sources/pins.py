"""Pins: commits merged in order onto a base commit, the same way everywhere.

`git merge-tree --write-tree` merges in the store alone (no work tree, no user's settings), and the
merge commits have a fixed author and date, so the same stack is the same tree and the same commits.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.sources.git import Store, head_name, location, resolve, store, store_with
from coldbench.sources.submodules import Content, content
from coldbench.study.builds import Build, GitRepository, GitSource, Pin
from coldbench.study.gitnames import FULL_COMMIT
from coldbench.study.lock import LockedBuild
from coldbench.study.lock import Pins as LockEntry


@dataclass(frozen=True)
class Conflict:
    """A file that two sides of a merge cannot agree on, and how: contents, modify/delete, ..."""

    path: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path} ({self.kind})"


@dataclass(frozen=True)
class Merge:
    """What a merge gives: the commit of the result, or None and the conflicts."""

    commit: str | None
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class Stack:
    """A base commit with pins merged onto it.

    `tree` is git's hash of the result and decides what is built; `facts` are for the record:
    git (the repository), ref, commit and its tree, pins (each with the tree after it and what it
    changed), merged (tree and diffstat of all pins; None without pins) and submodules.
    """

    tree: str
    content: Content
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """Return what a store of contents calls this one."""
        return f"git-{self.tree}"


def label(number: int, pin: Pin) -> str:
    """Return how messages call pin `number` (from 1)."""
    origin = f"#{pin.pull}" if pin.pull is not None else pin.ref
    name = pin.commit[:12] if origin is None else f"{origin} at {pin.commit[:12]}"
    return f"pin {number} ({name})"


def heads(pin: Pin) -> tuple[str, ...]:
    """Return the full names that the pin's pull request or branch may have."""
    if pin.pull is not None:
        return head_name(f"pull/{pin.pull}")
    return () if pin.ref is None else head_name(pin.ref)


def locked(name: str, build: Build, entry: LockEntry, cache: Path, *, write: bool = True) -> Build:
    """Return a build with the full commit of its git ref; other builds as they are.

    The commit is the lock's, else today's, which is then written there (unless told not to: then
    the build is returned as it is).

    Raises ColdbenchError for a ref that cannot be resolved and a lock that must not move.
    """
    if not isinstance(build.source, GitSource) or build.source.git.commit is not None:
        return build
    asked = build.source.git
    known = entry.read(LockedBuild)
    if known is None or known.git != asked:
        if FULL_COMMIT.fullmatch(asked.ref) or not write:
            return build
        entry.refuse_to_move("is for another url or ref" if known else "is not there yet")
        try:
            commit = resolve(asked.url, asked.ref, cache)
        except ColdbenchError as error:
            raise ColdbenchError(f"build {name}: {error}") from None
        known = LockedBuild(git=asked, commit=commit)
        entry.write(known)
    fixed = asked.model_copy(update={"commit": known.commit})
    return build.model_copy(update={"source": GitSource(git=fixed)})


def stack(source: GitRepository, pins: Sequence[Pin], cache: Path) -> Stack:
    """Merge `pins` in order onto the source; what is in the cache is not asked for again.

    Raises ColdbenchError for what cannot be fetched, a pin that does not merge (with its
    conflicts) and one that changes nothing.
    """
    place = location(source.url)
    commit = source.commit or resolve(source.url, source.ref, cache)
    with store(cache, place, "history" if pins else store_with(cache, commit)) as where:
        where.want(place, commit)
        have(where, place, pins)
        merged = commit
        tree = base_tree = where.tree(commit)
        facts = []
        for number, pin in enumerate(pins, start=1):
            merge = merge_commits(where, merged, pin.commit)
            if merge.commit is None:
                raise ColdbenchError(
                    f"{label(number, pin)} does not merge onto {source.ref} ({commit})"
                    f"{' and the pins before it' if number > 1 else ''}: "
                    f"{', '.join(map(str, merge.conflicts))}; `coldbench pins STUDY` shows all "
                    "that is wrong with the stack"
                )
            after = where.tree(merge.commit)
            if after == tree:
                raise ColdbenchError(
                    f"{label(number, pin)} changes nothing on {source.ref} ({commit})"
                    f"{' and the pins before it' if number > 1 else ''}; take it out"
                )
            shown = pin.model_dump(exclude_none=True)
            facts.append(shown | {"tree": after, **totals(diffstat(where, tree, after))})
            merged, tree = merge.commit, after
        changes = diffstat(where, base_tree, tree)
    whole = content(where, tree, place, cache)  # not in the lock: it may ask for the same store
    return Stack(
        tree,
        whole,
        {
            "git": place,
            "ref": source.ref,
            "commit": commit,
            "tree": base_tree,
            "pins": facts,
            "merged": {"tree": tree, **totals(changes), "changes": changes} if pins else None,
            "submodules": whole.submodules,
        },
    )


def have(where: Store, place: str, pins: Sequence[Pin]) -> None:
    """Fetch the pins' commits; raises ColdbenchError naming the pin that cannot be had."""
    for number, pin in enumerate(pins, start=1):
        try:
            where.want(location(pin.url) if pin.url else place, pin.commit, *heads(pin))
        except ColdbenchError as error:
            raise ColdbenchError(f"{label(number, pin)}: {error}") from None


def merge_commits(where: Store, ours: str, theirs: str) -> Merge:
    """Merge commit `theirs` onto commit `ours` in the store; nothing is written but objects."""
    if where.contains(ours, theirs):
        return Merge(ours)
    if not where.read("merge-base", ours, theirs):
        return Merge(None, (Conflict("the whole tree", "no common history"),))
    arguments = ("--write-tree", "-z", "--name-only", "--messages", ours, theirs)
    result = where.run("merge-tree", *arguments, ok=(0, 1))
    head, _, rest = result.stdout.partition(b"\0")
    tree = head.decode().strip()
    if result.returncode != 0:
        return Merge(None, _conflicts(rest))
    parents = ("-p", ours, "-p", theirs)
    message = f"Merge {theirs}\n".encode()
    made = where.git("commit-tree", *parents, tree, given=message)
    return Merge(made.decode().strip())


def _conflicts(rest: bytes) -> tuple[Conflict, ...]:
    # git-merge-tree(1), OUTPUT: names, an empty one, then messages: count, paths, type, text.
    names, _, messages = (b"\0" + rest).partition(b"\0\0")
    paths = [os.fsdecode(name) for name in names.split(b"\0") if name]
    kinds: dict[str, str] = {}
    parts = messages.split(b"\0")
    while len(parts) > 1 and parts[0].strip().isdigit():
        count = int(parts[0])
        kind = parts[count + 1].decode(errors="replace")
        if kind.startswith("CONFLICT"):
            for path in parts[1 : count + 1]:
                kinds.setdefault(os.fsdecode(path), kind.removeprefix("CONFLICT").strip(" ()"))
        parts = parts[count + 3 :]
    return tuple(Conflict(path, kinds.get(path, "contents")) for path in dict.fromkeys(paths))


def diffstat(where: Store, before: str, after: str) -> list[dict[str, Any]]:
    """Return each file that differs between two trees: path, insertions, deletions (lines).

    Both are None for a binary file.
    """
    shown = where.git("diff-tree", "-r", "-z", "--numstat", "--no-renames", before, after)
    changes = []
    for line in filter(None, shown.split(b"\0")):
        added, deleted, path = line.split(b"\t", 2)
        counts = [None if one == b"-" else int(one) for one in (added, deleted)]
        changes.append({"path": os.fsdecode(path), "insertions": counts[0], "deletions": counts[1]})
    return changes


def totals(changes: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return a diffstat's sums: files, insertions and deletions (lines; binary files have none)."""
    return {
        "files": len(changes),
        "insertions": sum(one["insertions"] or 0 for one in changes),
        "deletions": sum(one["deletions"] or 0 for one in changes),
    }
