"""What of a model is in the page cache now: by file, and by tensor of its header map."""

import glob
import re
from dataclasses import dataclass
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.measure.pagecache import evict, resident_bytes
from coldbench.sources.header import ModelMap, read_model

_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class Share:
    """A file or a tensor: `size` bytes from `offset` of `file`, of them `resident` in the cache."""

    name: str
    file: Path
    offset: int
    size: int
    resident: int


def model_files(path: Path) -> list[Path]:
    """Return the files that belong together: all shards of a split GGUF model, else `path` alone.

    Raises ColdbenchError where a shard is missing, or another than the first is given.
    """
    if not path.is_file() and path.exists():
        raise ColdbenchError(f"{path}: is not a regular file; name the model's file")
    if not _shards_beside(path):
        return [path]
    # The first by the user's own name for it.
    return [path, *(file.path for file in read_model(path).files[1:])]


def resident_files(path: Path) -> list[Share]:
    """Return what is resident of each of the `model_files`, which need not be GGUF.

    Looking does not change it, but that of a split model's shards the headers are read (a few
    pages each); where nothing of a shard was resident, they are put out again.
    """
    files = _looked_at(path)[1] if _shards_beside(path) else {path: resident_bytes(path)}
    return [Share(file.name, file, 0, file.stat().st_size, found) for file, found in files.items()]


def resident_tensors(path: Path) -> list[Share]:
    """Return what is resident of each tensor of a GGUF model, by file and offset.

    Counted in whole pages, so that a page at a border counts for both neighbours. Where
    something of the file was resident, the pages of its header are too, since it had to be read.
    Raises ColdbenchError where the file is not GGUF.
    """
    model, _ = _looked_at(path)
    tensors = sorted(model.tensors.values(), key=lambda tensor: (tensor.file, tensor.offset))
    shares = []
    for tensor in tensors:
        file = model.files[tensor.file].path
        found = resident_bytes(file, tensor.offset, tensor.size)
        shares.append(Share(tensor.name, file, tensor.offset, tensor.size, found))
    return shares


def _shards_beside(path: Path) -> set[Path]:
    """Return the real files that by their names are shards of one model with `path`."""
    found = set()
    for named in (path, path.resolve()):
        if match := _SHARD.fullmatch(named.name):
            pattern = f"{glob.escape(match[1])}-*-of-{match[2]}.gguf"
            found |= {shard.resolve() for shard in named.parent.glob(pattern) if shard.exists()}
    return found


def _looked_at(path: Path) -> tuple[ModelMap, dict[Path, int]]:
    """Read a model's header map; return it with what was resident of its files before that."""
    known = {file: resident_bytes(file) for file in {path.resolve(), *_shards_beside(path)}}
    model = read_model(path)
    found = {}
    for file in model.files:
        if known.get(file.path) == 0:
            evict([file.path])
        found[file.path] = known.get(file.path, resident_bytes(file.path))
    return model, found
