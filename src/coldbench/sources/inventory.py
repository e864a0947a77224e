"""What of a study's models is on this machine: looked up, neither fetched nor hashed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded
from coldbench.sources import hub
from coldbench.sources.hashes import kept_facts, known_hash
from coldbench.sources.header import read_model
from coldbench.sources.models import standin_path, wheel_file_path
from coldbench.sources.sbs import read_sbs
from coldbench.sources.standin import size_of
from coldbench.sources.url import url_part, url_path
from coldbench.study.lock import LockedModel, Pins
from coldbench.study.models import (
    HubFiles,
    HubSource,
    Model,
    PathSource,
    PypiFileSource,
    StandInSource,
    UrlSource,
)
from coldbench.study.plan import Plan

State = Literal["verified", "present", "missing", "wrong"]


@dataclass(frozen=True)
class Stock:
    """How a model stands.

    verified: all files are here, and since they last changed they had the hash they must have;
    present: here, but not hashed since, or nobody said which hash; missing: not all files are here;
    wrong: a file is here and is another one, or damaged. `bytes` is the whole model's size, None
    where only its source knows it; `note` says more for people.
    """

    name: str
    state: State
    bytes: int | None
    files: int | None
    note: str = ""


@dataclass(frozen=True)
class _File:
    """A file that should be here: None for what is not known of it. Sizes in bytes."""

    path: Path | None
    sha256: str | None
    size: int | None
    arrived: int = 0


def take_stock(plan: Plan, cache: Path) -> list[Stock]:
    """Return how each model of a study stands, in the study's order.

    Raises ColdbenchError for an unreadable lock file.
    """
    return [
        _stock(name, model, Pins(plan.path, "models", name), cache)
        for name, model in plan.models.items()
    ]


def _stock(name: str, model: Model, pins: Pins, cache: Path) -> Stock:
    match model.source:
        case StandInSource(standin=standin):
            path = standin_path(standin, cache)
            kept = kept_facts(path.with_name(f"{path.name}.json"), "sha256")
            sha256 = None if kept is None else str(kept["sha256"])
            return _judged(name, [_File(path, sha256, size_of(standin))], cache)
        case PypiFileSource() as source:
            path = wheel_file_path(source, cache)
            size = path.stat().st_size if path.is_file() else None
            return _judged(name, [_File(path, source.sha256, size)], cache)
        case UrlSource() as source:
            path = url_path(source, cache)
            size = path.stat().st_size if path.is_file() else None
            file = _File(path, source.sha256, size, _size(url_part(path)))
            return _judged(name, [file], cache)
        case PathSource() as source:
            return _local(name, source, cache)
        case HubSource(hf=asked):
            return _from_hub(name, asked, pins.read(LockedModel), cache)


def _from_hub(name: str, asked: HubFiles, pin: LockedModel | None, cache: Path) -> Stock:
    if pin is None or pin.hf != asked.model_copy(update={"sha256": None}):
        note = "not in the lock file yet" if pin is None else "the lock file is for another source"
        return Stock(name, "missing", None, None, note)
    files = [
        _File(path, file.sha256, file.size, hub.arrived(pin, file))
        for path, file in zip(hub.locate(pin), pin.files, strict=True)
    ]
    return _judged(name, files, cache)


def _local(name: str, source: PathSource, cache: Path) -> Stock:
    path = expanded(source.path)
    try:
        model = read_sbs(path) or read_model(path)
    except ColdbenchError as error:
        return Stock(name, "wrong" if path.exists() else "missing", None, None, str(error))
    files = [_File(file.path, source.sha256, file.size) for file in model.files]
    return _judged(name, files, cache)


def _judged(name: str, files: Sequence[_File], cache: Path) -> Stock:
    sizes = [file.size for file in files if file.size is not None]
    total = sum(sizes) if len(sizes) == len(files) else None
    here = [file for file in files if file.path is not None and file.path.is_file()]
    if len(here) < len(files):
        arrived = sum(file.arrived for file in files if file not in here)
        notes = [f"{len(here)} of {len(files)} files are here"] if len(files) > 1 else []
        notes += [f"{arrived / 2**20:.1f} MiB have arrived"] if arrived else []
        return Stock(name, "missing", total, len(files), ", ".join(notes))
    verified = True
    for file in here:
        assert file.path is not None
        found = known_hash(file.path, cache)
        size = _size(file.path)
        if file.size is not None and size != file.size:
            note = f"{file.path} has {size:,} bytes, must have {file.size:,}"
            return Stock(name, "wrong", total, len(files), note)
        if None not in (found, file.sha256) and found != file.sha256:
            note = f"{file.path} has sha256 {found}, must have {file.sha256}"
            return Stock(name, "wrong", total, len(files), note)
        verified = verified and found is not None and file.sha256 is not None
    return Stock(name, "verified" if verified else "present", total, len(files))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
