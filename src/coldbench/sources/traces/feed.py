"""The feeds of the kernel programs: files in the cache, named by what they were computed from."""

import logging
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import replacing, write_json
from coldbench.common.folders import need_space
from coldbench.common.hashing import file_sha256, folder_key
from coldbench.sources.hashes import hash_of, kept_facts, remember_hash
from coldbench.sources.traces.rows import Table, Trace, make_trace

log = logging.getLogger(__name__)

Record = dict[str, Any]

FORMAT = 1
"""Part of every key: raised when the same inputs would give another feed or record."""

NAME_BYTES = 256
_HEADER = struct.Struct(f"<8sQQQQII{NAME_BYTES}s")
_MAGIC = b"CBTRACE1"


def prepare_trace(
    model: Mapping[str, Any],
    stream: Mapping[str, Any],
    cache: Path,
    *,
    raw: tuple[int, int] | None = None,
) -> Record:
    """Make sure that the feed of a trace is in the cache; return its record.

    `model` is a model's record (path, content, table); `stream` and `raw` are those of
    `make_trace`. The record is plain data: `path`, `sha256`, `bytes` and `content` of the feed;
    `kind` (the formula), `stream` (what it was made from, with hashes of files), `gathers`,
    `per_token`, `rows_unique`, `pages_unique`, and `table` (file beside the model, tensor,
    offset, row_bytes, rows). Raises ColdbenchError as `make_trace`, and where the feed cannot be
    written.
    """
    table = model.get("table")
    tensor = None if table is None or raw is not None else table["tensor"]
    told = _told(stream, cache)
    identity = {
        "format": FORMAT,
        "kind": "trace",
        "model": model["content"],
        "name": Path(model["path"]).name,
        "tensor": tensor,
        "raw": raw,
        "stream": told,
    }

    def make(path: Path) -> Record:
        trace = make_trace(Path(model["path"]), stream, tensor=tensor, raw=raw)
        write_feed(trace, path)
        return {"stream": told, **_facts(trace)}

    return kept_feed(cache, identity, "trace", make)


def write_feed(trace: Trace, path: Path) -> None:
    """Write a trace as the gather program reads it, in one step.

    Little-endian: CBTRACE1; u64 offset of the table, bytes of a row, rows, gathers; u32 bytes of
    an index (4 or 8), gathers a token; the table's file name in 256 bytes; then the indices.
    Raises ColdbenchError for a name that is too long, and where the disk refuses.
    """
    name = os.fsencode(trace.table.file.name)
    if len(name) > NAME_BYTES - 1:
        raise ColdbenchError(
            f"{trace.table.file}: its name has more than {NAME_BYTES - 1} bytes; shorten it"
        )
    # Little-endian: what a GGUF file is, and the machines that coldbench measures.
    rows = np.ascontiguousarray(trace.rows)
    need_space(path.parent, rows.nbytes, "a trace")
    with replacing(path) as temporary, temporary.open("wb") as stream:
        stream.write(
            _HEADER.pack(
                _MAGIC,
                trace.table.offset,
                trace.table.row_bytes,
                trace.table.rows,
                len(rows),
                rows.itemsize,
                trace.per_token,
                name,
            )
        )
        stream.write(rows.data.cast("B"))


def kept_feed(
    cache: Path, identity: Mapping[str, Any], name: str, make: Callable[[Path], Record]
) -> Record:
    """Return the record of the feed of that identity, made by `make` unless it is there and good.

    `make` writes the file and returns what the record tells of it beside path and hash.
    """
    folder = cache / "feeds" / folder_key(identity)
    path, kept = folder / name, folder / "record.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            known = kept_facts(kept, "sha256")
            if known is not None and path.is_file() and hash_of(path, cache) == known["sha256"]:
                return known | {"path": str(path)}
            facts = make(path)
            sha256 = file_sha256(path)
            remember_hash(path, cache, sha256)
            record = {
                "path": str(path),
                "sha256": sha256,
                "content": sha256,
                "bytes": path.stat().st_size,
                **facts,
            }
            write_json(kept, record)
            log.info("written %s", path)
            return record
    except OSError as error:
        raise ColdbenchError(f"{folder}: cannot be written: {error.strerror}") from error


def pages_of(table: Table, rows: Any) -> tuple[Any, Any]:
    """Return the first and the last page of the file that each of `rows` touches (int64)."""
    begin = rows.astype(np.int64) * table.row_bytes + table.offset
    return begin // mmap.PAGESIZE, (begin + (table.row_bytes - 1)) // mmap.PAGESIZE


def distinct(rows: Any) -> Any:
    """Return each of the numbers `rows` once, in ascending order.

    As numpy.unique, whose way by hashing takes several times as long as sorting here.
    """
    ordered = np.sort(rows)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]


def count_pages(table: Table, unique: Any) -> int:
    """Return how many pages the rows `unique` (ascending, each once) touch."""
    first, last = pages_of(table, unique)
    # Rows in order touch pages in order: what the one before has touched already is not new.
    new = last - np.maximum(first, np.concatenate(([-1], last[:-1])) + 1) + 1
    return int(np.maximum(new, 0).sum())


def _facts(trace: Trace) -> Record:
    unique = distinct(trace.rows)
    return {
        "kind": trace.kind,
        "gathers": len(trace.rows),
        "per_token": trace.per_token,
        "rows_unique": len(unique),
        "pages_unique": count_pages(trace.table, unique),
        "table": {
            "file": trace.table.file.name,
            "tensor": trace.table.name,
            "offset": trace.table.offset,
            "row_bytes": trace.table.row_bytes,
            "rows": trace.table.rows,
        },
    }


def _told(stream: Mapping[str, Any], cache: Path) -> Record:
    """Return a stream's words with the hashes of the files that they name."""
    files = {key: stream[key] for key in ("recorded", "text", "tokenizer") if key in stream}
    told = {key: {"path": str(file), "sha256": _hash(file, cache)} for key, file in files.items()}
    return {**stream, **told}


def _hash(file: str | Path, cache: Path) -> str:
    path = Path(file)
    if path.exists() and not path.is_file():
        raise ColdbenchError(f"{path}: is not a regular file")
    try:
        return hash_of(path, cache)
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be read: {error.strerror}") from error
