"""The header map of a whole model: one file, or all shards of a split one."""

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gguf.constants import Keys
from tabulate import tabulate

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header.parse import Header, Metadata, Skipped, Tensor, read_header

TABLE_TENSOR = "per_layer_token_embd.weight"
"""The tensor that engines read lazily, row by row."""

_SHARD = re.compile(r"(?P<prefix>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_SHOWN_ITEMS = 8
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ModelFile:
    """A file of a model: the real file behind links, and its size in bytes."""

    path: Path
    size: int


@dataclass(frozen=True)
class ModelMap:
    """A model's files in shard order, its metadata (shard 1's) and where its tensors lie.

    `path` is what the user named (absolute): the name an engine is started with.
    """

    path: Path
    files: tuple[ModelFile, ...]
    metadata: Metadata
    tensors: dict[str, Tensor]
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def architecture(self) -> str | None:
        """The architecture's name, if the header has one."""
        name = self.metadata.get(Keys.General.ARCHITECTURE)
        return name if isinstance(name, str) else None


class Place(Protocol):
    """Where the files of models lie: a file system or a hub's repository."""

    def has(self, path: Path) -> bool:
        """Return whether there is something of that name."""

    def headers(self, paths: Sequence[Path]) -> list[Header]:
        """Read the headers of files; raises ColdbenchError for one that cannot be read."""


class FileSystem:
    """The place of local files."""

    def has(self, path: Path) -> bool:
        """Return whether there is something of that name, if only a dangling link."""
        return path.exists() or path.is_symlink()

    def headers(self, paths: Sequence[Path]) -> list[Header]:
        """Read the headers, one after the other."""
        return [read_header(path) for path in paths]


def read_model(path: Path) -> ModelMap:
    """Read the headers of the local model `path`; for a split model, of all shards.

    Raises ColdbenchError for every file that cannot be read, and where a shard is missing or
    another than the first is given.
    """
    return replace(read_model_at(FileSystem(), path), path=Path(os.path.abspath(path)))


def read_model_at(place: Place, path: Path) -> ModelMap:
    """Do as `read_model` for a model at any place."""
    (first,) = place.headers([path])
    count = _number(first, Keys.Split.LLM_KV_SPLIT_COUNT) or 1
    headers = [first, *place.headers(_other_shards(place, path, first, count))]
    tensors: dict[str, Tensor] = {}
    for index, header in enumerate(headers):
        if count > 1 and (
            _number(header, Keys.Split.LLM_KV_SPLIT_NO) != index
            or _number(header, Keys.Split.LLM_KV_SPLIT_COUNT) != count
        ):
            raise ColdbenchError(f"{header.path}: is not shard {index + 1} of {count} of {path}")
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise ColdbenchError(f"{header.path}: tensor {tensor.name} is in another shard too")
            tensors[tensor.name] = replace(tensor, file=index)
    total = _number(first, Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT)
    if count > 1 and total is not None and total != len(tensors):
        raise ColdbenchError(
            f"{path}: the shards hold {len(tensors):,} tensors, the model has {total:,}: "
            "shards of another model?"
        )
    return ModelMap(
        path=path,
        files=tuple(ModelFile(header.path, header.size) for header in headers),
        metadata=first.metadata,
        tensors=tensors,
        notes=tuple(f"{header.path.name}: {note}" for header in headers for note in header.notes),
    )


def first_shard(path: Path) -> Path:
    """Return the name of the first shard where `path` is named as another; else `path`."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return path
    return path.with_name(f"{match['prefix']}-00001-of-{match['count']}.gguf")


def _number(header: Header, key: str) -> int | None:
    value = header.metadata.get(key)
    return value if isinstance(value, int) else None


def _other_shards(place: Place, path: Path, first: Header, count: int) -> list[Path]:
    if count == 1:
        return []
    number = (_number(first, Keys.Split.LLM_KV_SPLIT_NO) or 0) + 1
    # A cache may link a proper name to a file named by its hash, or a short name to a shard.
    named = next((p for p in (path, first.path) if _SHARD.fullmatch(p.name)), None)
    if named is None:
        raise ColdbenchError(
            f"{path}: is shard {number} of {count}; give it back its name, which ends in "
            f"-{number:05d}-of-{count:05d}.gguf, or the other shards cannot be found"
        )
    match = _SHARD.fullmatch(named.name)
    assert match is not None
    if int(match["count"]) != count:
        raise ColdbenchError(
            f"{path}: is shard {number} of {count} by its header, of {int(match['count'])} by its "
            "name; fetch the model again under its own names"
        )
    names = [f"{match['prefix']}-{no:05d}-of-{count:05d}.gguf" for no in range(1, count + 1)]
    if number != 1:
        raise ColdbenchError(f"{path}: is shard {number} of {count}; use shard 1: {names[0]}")
    shards = [named.with_name(name) for name in names[1:]]
    missing = [shard for shard in shards if not place.has(shard)]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ColdbenchError(
            f"{path}: shard {missing[0].name}{others} is missing in {named.parent}; fetch it too"
        )
    return shards


def find_table(model: ModelMap, name: str | None) -> Tensor | None:
    """Return the tensor `name`; without a name the per-layer embedding table, or None.

    Raises ColdbenchError for a name that the model lacks.
    """
    if name is None:
        return model.tensors.get(TABLE_TENSOR)
    if name in model.tensors:
        return model.tensors[name]
    near = difflib.get_close_matches(name, model.tensors, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; see coldbench inspect"
    raise ColdbenchError(f"{model.path}: has no tensor {name}{hint}")


def describe(model: ModelMap) -> str:
    """Return the header map as text for people: files, metadata, tensors (table marked), notes."""
    table = find_table(model, None)
    files = [[number, file.path, f"{file.size:,}"] for number, file in enumerate(model.files)]
    metadata = [[key, _short(value)] for key, value in model.metadata.items()]
    tensors = [
        [
            f"{tensor.name} <- table" if tensor is table else tensor.name,
            tensor.type,
            " x ".join(map(str, tensor.shape)),
            tensor.file,
            f"{tensor.offset:,}",
            f"{tensor.size:,}" + ("?" if tensor.size_inferred else ""),
        ]
        for tensor in model.tensors.values()
    ]
    right = ("left", "left", "left", "right", "right", "right")
    parts = [
        f"{model.path}: {model.architecture or 'no architecture'}, {len(model.tensors):,} tensors, "
        f"{model.size:,} bytes in {len(model.files)} file(s)",
        _table(files, ["file", "path", "bytes"], ("right", "left", "right")),
        _table(metadata, ["key", "value"], ("left", "left")),
        _table(tensors, ["tensor", "type", "shape", "file", "offset", "bytes"], right),
        *(f"note: {note}" for note in model.notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: Sequence[Sequence[object]], headers: list[str], align: tuple[str, ...]) -> str:
    if not rows:
        return ""
    # Numbers are already spelled for reading; tabulate must not parse them again.
    return tabulate(rows, headers, tablefmt="simple", colalign=align, disable_numparse=True)


def _short(value: object) -> str:
    if isinstance(value, Skipped):
        return f"({value.count:,} x {value.kind})"
    if isinstance(value, tuple):
        more = f", ... ({len(value):,})" if len(value) > _SHOWN_ITEMS else ""
        return "[" + ", ".join(map(str, value[:_SHOWN_ITEMS])) + more + "]"
    text = str(value) if not isinstance(value, str) else value.replace("\n", "\\n")
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
