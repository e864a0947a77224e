"""The lock file of a study, NAME.lock.yaml beside NAME.yaml: what moving names stood for.

A branch of a model repository or of an engine's source moves. What it stood for when the study
first ran is written here once, and every later run uses that. The user commits the file with the
study. An entry keeps the words of the study that it answers: another revision or file in the study
makes a new entry, or is refused where the lock must not move (`--config locked=true`). The file
also says with which versions of our packages it was first written; they are checked, since a lock
cannot install anything.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import replacing
from coldbench.study.builds import GitRepository
from coldbench.study.gitnames import FULL_COMMIT, FullCommit
from coldbench.study.models import HubFiles
from coldbench.study.packages import installed, version
from coldbench.study.reading import read_strictly
from coldbench.study.scalars import Commit, Name, RepositoryPath, Sha256
from coldbench.study.section import Section

log = logging.getLogger(__name__)

ENDING = ".lock.yaml"
_HEADER = """\
# Written by coldbench: what the study's branches and tags stood for. Commit this with the study.
# To move an entry, delete it and run the workflow; --config locked=true refuses to move any.
"""


class LockedFile(Section):
    """One file: its path in the repository, size in bytes and SHA-256."""

    name: RepositoryPath
    size: int = Field(ge=0)
    sha256: Sha256


class LockedModel(Section):
    """What a model of the hub stood for: the commit, and its files in shard order.

    `hf` is the study's source without `sha256`, which only checks and chooses nothing.
    """

    hf: HubFiles
    commit: Commit
    files: tuple[LockedFile, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _what_the_study_says(self) -> "LockedModel":
        if FULL_COMMIT.fullmatch(self.hf.revision) and self.hf.revision != self.commit:
            raise ValueError(f"has the commit {self.commit} for the revision {self.hf.revision}")
        return self


class LockedBuild(Section):
    """What a build's git ref stood for. `git` is the study's source."""

    git: GitRepository
    commit: FullCommit


class LockFile(Section):
    """A whole lock file. Each section maps the study's names to what they stood for."""

    format: Literal["1"] = "1"
    models: dict[Name, LockedModel] = Field(default_factory=dict)
    builds: dict[Name, LockedBuild] = Field(default_factory=dict)
    packages: dict[Name, str] = Field(default_factory=dict)


SectionName = Literal["models", "builds"]
_Pin = TypeVar("_Pin", bound=Section)


@dataclass(frozen=True)
class Pins:
    """One entry of a study's lock file: of the model (or build) called `name`.

    `locked` says that the file must stay as it is.
    """

    study: Path
    section: SectionName
    name: str
    locked: bool = False

    @property
    def path(self) -> Path:
        """The lock file."""
        return lock_path(self.study)

    def read(self, kind: type[_Pin]) -> _Pin | None:
        """Return the entry, or None. Raises ColdbenchError where the file is not a lock file."""
        pin = getattr(read_lock(self.study), self.section).get(self.name)
        assert pin is None or isinstance(pin, kind)
        return pin

    def refuse_to_move(self, reason: str) -> None:
        """Raise ColdbenchError where the lock must stay as it is; to be asked before the network.

        `reason` says what the entry lacks.
        """
        if self.locked:
            raise ColdbenchError(
                f"{self.path}: {self.section}.{self.name}: {reason}, and locked=true forbids to "
                "change it; run once without it, then commit the file"
            )

    def write(self, pin: Section) -> None:
        """Set the entry and leave all others. Raises ColdbenchError where that cannot be."""
        self.refuse_to_move("has to be written")
        with _alone(self.path):
            lock = read_lock(self.study)
            entries = {**getattr(lock, self.section), self.name: pin}
            packages = lock.packages or installed()
            update = {self.section: entries, "packages": packages}
            _write(self.path, lock.model_copy(update=update))


def lock_path(study: Path) -> Path:
    """Return where the lock file of a study file lies."""
    return study.with_name(f"{study.stem}{ENDING}")


def read_lock(study: Path) -> LockFile:
    """Return the lock of a study file; an empty one where there is none.

    Raises ColdbenchError (file, line, key) where it cannot be read or has another form.
    """
    path = lock_path(study)
    if not path.exists():
        return LockFile()
    try:
        return read_strictly(path, LockFile)
    except ColdbenchError as error:
        first, *more = str(error).splitlines()
        others = f" (and {len(more)} more)" if more else ""
        raise ColdbenchError(
            f"{first}{others}; put the lock file back as it was committed, or delete what is wrong"
        ) from None


def check_packages(study: Path, *, locked: bool) -> None:
    """Tell where the packages here are not those of the study's lock file, if there is one.

    With `locked` that is an error (ColdbenchError), else a warning.
    """
    moved = [
        f"{name} is {here or 'not installed'}, not {wanted}"
        for name, wanted in read_lock(study).packages.items()
        if (here := version(name)) != wanted
    ]
    if not moved:
        return
    told = f"{lock_path(study)}: packages: {'; '.join(moved)}"
    if locked:
        raise ColdbenchError(
            f"{told}; locked=true wants the lock's: check out the coldbench that wrote it and run "
            "make setup, or delete `packages` from the lock"
        )
    log.warning("%s", told)


def _write(path: Path, lock: LockFile) -> None:
    plain = lock.model_dump(mode="json", exclude_none=True)
    sections = {
        key: dict(sorted(value.items())) if isinstance(value, dict) else value
        for key, value in plain.items()
        if value
    }
    yaml = YAML()
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    with replacing(path) as temporary:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(_HEADER)
            yaml.dump(sections, stream)
        try:
            # What is written must read back as it was: a commit of digits is text.
            same = read_strictly(temporary, LockFile) == lock
        except (ColdbenchError, ValidationError):
            same = False
        assert same, f"{path}: would not read back"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one job at a time change the file; models are fetched in parallel."""
    try:
        # The folder itself is locked, so that nothing is left lying beside the study.
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
