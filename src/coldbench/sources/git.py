"""Git repositories of others: what a ref names there, and their commits in bare stores of ours.

Our stores are in git/ of the cache: `tips`, one a repository, holds single commits without their
past (a shallow fetch); `history`, one for all, holds the past as well, which merging needs, so that
of a fork or clone only what is new is fetched. Whatever was fetched stays (nothing is ever pruned
from the object stores), so what was built once needs no network.
Only what talks to another repository sees the user's git settings (credentials, proxies).
"""

import difflib
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from filelock import FileLock

from coldbench.common.children import die_with_parent
from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded
from coldbench.common.hashing import folder_key
from coldbench.common.locks import machine
from coldbench.sources.content import clean_environment
from coldbench.study.gitnames import FULL_COMMIT

log = logging.getLogger(__name__)

_SETTINGS = {
    "core.hooksPath": os.devnull,
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",  # a pack appears whole or not at all
    "gc.auto": "0",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "maintenance.auto": "false",
    "protocol.version": "2",  # its servers give any commit, not only tips
}
_KEPT = re.compile(r"GIT_(SSH|SSH_COMMAND|ASKPASS|SSL_.*|PROXY_.*|CONFIG_(GLOBAL|SYSTEM))")
_PROTOCOLS = "file:git:http:https:ssh"
# A repository that the study names may belong to another user: it is only read.
_UPLOAD_PACK = "--upload-pack=git -c safe.directory='*' upload-pack"
Kind = Literal["tips", "history"]
_SCP = re.compile(r"[^/:]+:")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")
_CAUSES = (
    (
        r"resolve host|name resolution|Connection refused|unreachable|timed out|too slow"
        r"|Could(?: not|n.t) connect|reset by peer|early EOF",
        "cannot be reached: are you offline? What is in the cache and named by a full commit (or "
        "locked) needs no network",
    ),
    (
        r"prompts disabled|Authentication failed|Permission denied|could not read Username"
        r"|returned error: 40[13]|HTTP 40[13]",
        "does not let you in: `git ls-remote` must work by hand (credential helper, ssh key)",
    ),
    (
        r"not appear to be a git|not found|does not exist|No such file|not a bundle"
        r"|returned error: 404|HTTP 404",
        "is no git repository that git can find; mend the url",
    ),
)


# --- other repositories -------------------------------------------------------------------------


def location(url: str) -> str:
    """Return the one spelling of a repository's address; a local path becomes a real one."""
    if is_local(url):
        return os.path.realpath(expanded(url.removeprefix("file://")))
    return url


def is_local(url: str) -> bool:
    """Tell whether a repository is on this machine."""
    if url.startswith("file://"):
        return True
    return "://" not in url and (_SCP.match(url) is None or expanded(url).exists())


def remote_refs(place: str, patterns: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the full commit behind each ref of the repository at `place`.

    `patterns` are full names; without any, all refs are asked for. Annotated tags give the commit
    they stand for. Raises ColdbenchError where the repository cannot be read.
    """
    wanted = [part for name in patterns for part in (name, name + "^{}")]
    shown = _talk(place, None, "ls-remote", "--quiet", *_reading(place), "--", place, *wanted)
    refs: dict[str, str] = {}
    for line in shown.splitlines():
        commit, _, name = line.partition("\t")
        refs[name] = commit
    peeled = {name[:-3]: commit for name, commit in refs.items() if name.endswith("^{}")}
    found = {name: one for name, one in refs.items() if not name.endswith("^{}")} | peeled
    return {name: one for name, one in found.items() if not patterns or name in patterns}


def head_name(ref: str) -> tuple[str, ...]:
    """Return the full names that `ref` may stand for in a repository."""
    if ref == "HEAD" or ref.startswith("refs/"):
        return (ref,)
    if match := re.fullmatch(r"pull/(\d+)(/head)?", ref):
        return (f"refs/pull/{match[1]}/head",)
    return (f"refs/tags/{ref}", f"refs/heads/{ref}")


def resolve(url: str, ref: str, cache: Path) -> str:
    """Return the full commit that `ref` names in the repository at `url` now.

    A full commit is returned as it is, without a look. Raises ColdbenchError for a ref that is
    not there, one that names two commits, and a repository that cannot be read.
    """
    if FULL_COMMIT.fullmatch(ref):
        return ref
    place = location(url)
    found = remote_refs(place, head_name(ref))
    if len(set(found.values())) > 1:
        both = " and ".join(f"{name} ({commit[:12]})" for name, commit in found.items())
        raise ColdbenchError(f"{place}: {ref} names {both}; write the full name")
    if found:
        return next(iter(found.values()))
    if _SHORT_COMMIT.fullmatch(ref):
        with store(cache, place, "history") as history:
            history.fetch_refs(place)
            commit = history.commit(ref)
            if commit and history.found_in(place, commit):
                return commit
    known = [name.split("/", 2)[-1] for name in remote_refs(place)]
    near = difflib.get_close_matches(ref, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "name one that `git ls-remote` shows"
    raise ColdbenchError(f"{place}: has no branch, tag or commit {ref}; {hint}")


def _reading(place: str) -> tuple[str, ...]:
    return (_UPLOAD_PACK,) if is_local(place) and Path(place).is_dir() else ()


def _talk(place: str, folder: Path | None, *arguments: str) -> str:
    """Run a git command that talks to the repository at `place`; return what it prints."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("GIT_") or _KEPT.fullmatch(key)
    }
    kept |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": _PROTOCOLS}
    # Not a repository that the current folder may be in.
    kept["GIT_DIR"] = str(folder) if folder else os.devnull
    result = subprocess.run(
        _command(*arguments),
        env=kept,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        preexec_fn=die_with_parent(),
    )
    if result.returncode != 0:
        raise _unreadable(place, result.stderr)
    return result.stdout.decode(errors="surrogateescape")


def _unreadable(place: str, stderr: bytes) -> ColdbenchError:
    said = condensed(stderr)
    message = said.replace(place, "")  # a folder's name is no cause
    for pattern, cause in _CAUSES:
        if re.search(pattern, message, re.IGNORECASE):
            return ColdbenchError(f"{place}: {cause} ({said})")
    return ColdbenchError(f"{place}: git cannot read it: {said}")


def _command(*arguments: str) -> list[str]:
    settings = [part for pair in _SETTINGS.items() for part in ("-c", "=".join(pair))]
    return ["git", *settings, *arguments]


def condensed(stderr: bytes) -> str:
    """Return what git complains of in one line, without users and passwords of addresses."""
    lines = stderr.decode(errors="replace").splitlines()
    marked = [line for line in lines if line.startswith(("error: ", "fatal: "))]
    parts = [line.partition(": ")[2] if marked else line for line in marked or lines]
    text = "; ".join(dict.fromkeys(part.strip() for part in parts if part.strip()))
    return re.sub(r"://[^/@\s]+@", "://", text) or "no reason given"


# --- our stores ---------------------------------------------------------------------------------


@contextmanager
def store(cache: Path, place: str, kind: Kind) -> Iterator["Store"]:
    """Yield one of our two stores for the repository at `place`, alone."""
    folder = cache / "git" / (folder_key(place) if kind == "tips" else ".")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{kind}.lock"), machine(alone=False, purpose=f"reading {place}"):
        yield Store(folder / f"{kind}.git", shallow=kind == "tips")


def store_with(cache: Path, commit: str) -> Kind:
    """Return which of our stores has a commit; the smaller one, `tips`, where none has it."""
    kept = cache / "git" / "history.git" / "refs" / "kept" / commit
    return "history" if kept.is_file() else "tips"


class Store:
    """A bare repository of ours; `shallow` ones hold commits without their past.

    Refs: refs/kept/<commit> for each commit that was asked for (it is then complete), and
    refs/from/<key of the place>/{heads,tags,pull}/ for what fetch_refs saw last.
    Reading needs no lock: objects never change and never go.
    """

    def __init__(self, folder: Path, *, shallow: bool) -> None:
        self.folder = folder
        self._shallow = shallow
        if not folder.exists():
            # The branch of HEAD never comes to be: no attributes of its files can matter.
            arguments = ("--bare", "--quiet", "--template=", "--initial-branch=none")
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            self.git("init", *arguments, str(new))
            new.rename(folder)
        self.git("rev-parse", "--git-dir")  # a damaged one is told as ours, not the other side's
        # Of a killed git: the lock is ours.
        temporary = (folder / "objects" / "pack").glob("tmp_*")
        for stale in [*folder.glob("*.lock"), *(folder / "refs").rglob("*.lock"), *temporary]:
            stale.unlink(missing_ok=True)

    def want(self, place: str, commit: str, *others: str) -> None:
        """Have `commit` from the repository at `place` here, complete.

        A server that does not give single commits is asked for all its branches and tags, and for
        the refs `others`. Raises ColdbenchError where it does not have the commit.
        """
        if self.read("rev-parse", "--verify", "--quiet", f"refs/kept/{commit}"):
            return
        if self.commit(commit) == commit and not self._shallow:
            self._keep(commit)
            return
        log.info("%s: fetching %s", place, commit)
        wanted = f"+{commit}:refs/kept/{commit}"
        refused: ColdbenchError | None = None
        depths: list[tuple[str, ...]] = [("--depth=1",), ()] if self._shallow else [()]
        for depth in depths:
            try:
                self._fetch(place, *depth, wanted)
                return
            except ColdbenchError as error:
                refused = refused or error
        assert refused is not None
        self.fetch_refs(place, *others)
        if self.commit(commit) != commit:
            raise ColdbenchError(f"{place}: has no commit {commit}: {_missing(place, refused)}")
        self._keep(commit)

    def fetch_refs(self, place: str, *others: str) -> None:
        """Have all branches and tags of the repository at `place` here, and its refs `others`."""
        base = f"refs/from/{folder_key(place)}"
        there = remote_refs(place, others) if others else {}
        names = {f"+{name}:{base}/{name.removeprefix('refs/')}" for name in there}
        specs = [f"+refs/heads/*:{base}/heads/*", f"+refs/tags/*:{base}/tags/*", *sorted(names)]
        # What is here without its past would count as had: its past would not come.
        deep = ("--unshallow",) if (self.folder / "shallow").exists() else ()
        self._fetch(place, "--prune", *deep, *specs)

    def _fetch(self, place: str, *arguments: str) -> None:
        options = [one for one in arguments if one.startswith("--")]
        specs = [one for one in arguments if not one.startswith("--")]
        fixed = ("--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow")
        _talk(place, self.folder, "fetch", *fixed, *_reading(place), *options, "--", place, *specs)

    def _keep(self, commit: str) -> None:
        self.git("update-ref", f"refs/kept/{commit}", commit)

    def found_in(self, place: str, commit: str) -> bool:
        """Tell whether a branch or tag that was fetched from `place` has a commit."""
        inside = f"refs/from/{folder_key(place)}"
        return bool(self.read("for-each-ref", "--contains", commit, "--count=1", inside))

    def commit(self, name: str) -> str | None:
        """Return the full commit that `name` (a commit, or the beginning of one) is here."""
        return self.read("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") or None

    def tree(self, commit: str) -> str:
        """Return the tree hash of a commit."""
        return self.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()

    def contains(self, commit: str, ancestor: str) -> bool:
        """Tell whether `ancestor` is in the past of `commit`, or is it."""
        return self.run("merge-base", "--is-ancestor", ancestor, commit).returncode == 0

    def read(self, *arguments: str) -> str:
        """Run a git command that may fail; return what it prints, empty where it failed."""
        result = self.run(*arguments)
        return (
            result.stdout.decode(errors="surrogateescape").strip() if not result.returncode else ""
        )

    def git(self, *arguments: str, given: bytes = b"") -> bytes:
        """Run a git command here and return what it prints; raises ColdbenchError if it fails."""
        return self.run(*arguments, given=given, ok=(0,)).stdout

    def run(
        self, *arguments: str, given: bytes = b"", ok: tuple[int, ...] | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a git command here, with no setting of the user's.

        Raises ColdbenchError where it ends with a status that is not in `ok` (None: any is).
        """
        result = self._run(*arguments, given=given)
        if ok is not None and result.returncode not in ok:
            raise ColdbenchError(
                f"{self.folder}: git {arguments[0]} failed: {condensed(result.stderr)}; if the "
                "disk is not full, delete this folder and run the same command again"
            )
        return result

    def _run(self, *arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        fixed = {
            "GIT_DIR": str(self.folder),
            # Merges of the same commits are the same commit, whoever makes them and when.
            **{f"GIT_{who}_NAME": "coldbench" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "coldbench@localhost" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_DATE": "@0 +0000" for who in ("AUTHOR", "COMMITTER")},
        }
        return subprocess.run(
            _command(*arguments),
            input=given,
            capture_output=True,
            env=clean_environment() | fixed,
            check=False,
            preexec_fn=die_with_parent(),
        )


def _missing(place: str, refused: ColdbenchError) -> str:
    if is_local(place):
        for folder in (Path(place), Path(place, ".git")):
            if (folder / "shallow").is_file():
                return f"it is a shallow clone; complete it (git -C {place} fetch --unshallow)"
    return f"it was perhaps pushed over and cleaned up ({str(refused).removeprefix(f'{place}: ')})"
