"""The feed of the streaming program: which bytes of which files make up each layer of a model."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf.constants import GGUF_DEFAULT_ALIGNMENT, Keys

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_text
from coldbench.sources.header import ModelMap, Tensor, read_model
from coldbench.sources.header.lazy import FLAGGED
from coldbench.sources.traces.feed import FORMAT, Record, kept_feed
from coldbench.sources.traces.rows import beside

_BLOCK = re.compile(r"blk\.(\d+)\.")

Range = tuple[Path, int, int]
"""A file, an offset in it and a length, in bytes."""


def prepare_layers(model: Mapping[str, Any], cache: Path) -> Record:
    """Make sure that the feed of a model's layers is in the cache; return its record.

    `model` is a model's record (path, content, table). A layer is the tensors of one block
    (blk.N), merged to contiguous ranges; embeddings, output and tables that are read row by row
    are of no layer. The record is plain data: `path`, `sha256`, `bytes` and `content` of the
    feed; `kind` (layers), `layers`, `ranges`, `weight_bytes` (of all layers) and
    `largest_layer_bytes`. Raises ColdbenchError for a model without blocks, and where the feed
    cannot be written.
    """
    table = model.get("table")
    tensor = None if table is None else table["tensor"]
    identity = {
        "format": FORMAT,
        "kind": "layers",
        "model": model["content"],
        "name": Path(model["path"]).name,
        "tensor": tensor,
    }

    def make(path: Path) -> Record:
        layers = layers_of(read_model(Path(model["path"])), tensor)
        write_text(path, layers_text(layers))
        sizes = [sum(size for _, _, size in ranges) for ranges in layers]
        return {
            "kind": "layers",
            "layers": len(layers),
            "ranges": sum(map(len, layers)),
            "weight_bytes": sum(sizes),
            "largest_layer_bytes": max(sizes),
        }

    return kept_feed(cache, identity, "layers", make)


def layers_of(model: ModelMap, table: str | None) -> list[list[Range]]:
    """Return the ranges of each block in ascending order of blocks, files and offsets.

    Tensors are merged over the padding between them, which is part of the range then. `table` is
    left out, and so are the tensors that engines read lazily. Raises ColdbenchError where nothing
    is left.
    """
    apart = {table, *FLAGGED.get(model.architecture or "", ())}
    blocks: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in model.tensors.values():
        match = _BLOCK.match(tensor.name)
        if match and tensor.size and tensor.name not in apart:
            blocks[int(match[1])].append(tensor)
    if not blocks:
        raise ColdbenchError(f"{model.path}: has no tensors blk.N, so there are no layers to read")
    alignment = model.metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)
    return [_merged(model, blocks[number], alignment) for number in sorted(blocks)]


def layers_text(layers: list[list[Range]]) -> str:
    """Return the feed: CBLAYERS1 LAYERS RANGES, then LAYER OFFSET BYTES BASENAME a range.

    Raises ColdbenchError for a file name that does not fit in a line.
    """
    lines = [f"CBLAYERS1 {len(layers)} {sum(map(len, layers))}"]
    for number, ranges in enumerate(layers):
        for file, offset, size in ranges:
            if not file.name.isprintable():
                raise ColdbenchError(f"{file.name!r}: has unprintable characters; rename it")
            lines.append(f"{number} {offset} {size} {file.name}")
    return "\n".join(lines) + "\n"


def _merged(model: ModelMap, tensors: list[Tensor], alignment: int) -> list[Range]:
    ranges: list[Range] = []
    for tensor in sorted(tensors, key=lambda tensor: (tensor.file, tensor.offset)):
        file = beside(model, tensor)
        if ranges:
            last, offset, size = ranges[-1]
            if last == file and tensor.offset - (offset + size) < alignment:
                ranges[-1] = (file, offset, tensor.offset + tensor.size - offset)
                continue
        ranges.append((file, tensor.offset, tensor.size))
    return ranges
