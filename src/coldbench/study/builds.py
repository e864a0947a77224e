"""What a study file may say of a build: its source, and what is done to it."""

from typing import Annotated, Any

from pydantic import Field, Tag, model_validator

from coldbench.study.gitnames import FullCommit, GitAddress, GitRef
from coldbench.study.scalars import LocalPath, Name, Requirement, Sha256, Text
from coldbench.study.section import Section, one_of


class SdistSource(Section):
    """Engine source inside a PyPI sdist; `commit` is the engine's own commit, if known."""

    pypi: Requirement
    sha256: Sha256
    subfolder: str = "."
    commit: Text | None = None


class FolderSource(Section):
    """Engine source in a folder of this machine (read, never written)."""

    folder: LocalPath


class GitRepository(Section):
    """A git repository (an address, a folder or a bundle) at `ref`: branch, tag, commit, pull/N.

    `commit` is the full commit to take whatever `ref` has come to name; `ref` is then its label.
    """

    url: GitAddress
    ref: GitRef
    commit: FullCommit | None = None


class GitSource(Section):
    """Engine source in a git repository."""

    git: GitRepository


class Pin(Section):
    """A commit that is merged onto the source. `pull` or `ref` is where it stood when pinned.

    `url` is the repository that has it, where that is not the source's own (a fork).
    """

    commit: FullCommit
    pull: int | None = Field(default=None, gt=0)
    ref: GitRef | None = None
    url: GitAddress | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"commit": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_head(self) -> "Pin":
        if self.pull is not None and self.ref is not None:
            raise ValueError("takes at most one of the keys pull, ref")
        return self


class BinariesSource(Section):
    """Ready programs in a folder of this machine; `commit` is the engine's own, if known."""

    binaries: LocalPath
    commit: Text | None = None


BuildSource = Annotated[
    Annotated[SdistSource, Tag("pypi")]
    | Annotated[GitSource, Tag("git")]
    | Annotated[FolderSource, Tag("folder")]
    | Annotated[BinariesSource, Tag("binaries")],
    one_of("pypi", "git", "folder", "binaries"),
]


class Build(Section):
    """An engine binary set. Keys left out are taken from the build named by `like`."""

    label: str | None = None
    like: Name | None = None
    source: BuildSource | None = None
    pins: tuple[Pin, ...] | None = None
    patches: tuple[LocalPath, ...] | None = None
    cmake: dict[str, Text] | None = None
    targets: tuple[str, ...] | None = None
