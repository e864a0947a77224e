"""Cheap fingerprints of what lies outside the study file, so that a change of it is noticed.

They only decide whether a job runs again; what it then finds is hashed in full.
"""

import os
from pathlib import Path

from coldbench.common.folders import expanded
from coldbench.common.hashing import data_sha256, file_sha256
from coldbench.sources.hashes import kept_facts
from coldbench.study.builds import BinariesSource, Build, FolderSource, GitSource
from coldbench.study.gitnames import FULL_COMMIT
from coldbench.study.lock import LockedBuild, LockedModel, Pins
from coldbench.study.models import HubSource, Model, PathSource

MISSING = "missing"


def model_stamp(model: Model, pins: Pins, record: Path) -> str:
    """Return a fingerprint of a `path` model's first file, of a hub's entry in the lock file.

    `record` is the model's record of an earlier run, if any: while the lock says what that run
    used, the fingerprint is that run's, which may have been the one that wrote the entry.
    Raises ColdbenchError for an unreadable lock file.
    """
    match model.source:
        case PathSource(path=path):
            return _file(expanded(path))
        case HubSource():
            return _pinned(pins, record)
    return ""


def _pinned(pins: Pins, record: Path) -> str:
    pin = pins.read(LockedModel)
    entry = None if pin is None else pin.model_dump(mode="json", exclude_none=True)
    used = kept_facts(record, "pin", "stamp")
    if used is not None and used["pin"] == entry:
        return str(used["stamp"])
    if entry is not None:
        return data_sha256(entry)
    return "" if used is None else "unlocked"


def build_stamp(build: Build) -> str:
    """Return a fingerprint of a build's patches (content) and local folder (sizes, times)."""
    stamps = [_content(expanded(patch)) for patch in build.patches or ()]
    match build.source:
        case FolderSource(folder=folder) | BinariesSource(binaries=folder):
            stamps.append(_folder(expanded(folder)))
    return data_sha256(stamps) if stamps else ""


def build_ref_stamp(build: Build, pins: Pins, record: Path) -> str:
    """Return a fingerprint of what a git build's ref is in the lock file; empty for others.

    `record` is the build's record of an earlier run, which keeps this fingerprint: see model_stamp.
    Raises ColdbenchError for an unreadable lock file.
    """
    if not isinstance(build.source, GitSource) or build.source.git.commit is not None:
        return ""
    asked = build.source.git
    if FULL_COMMIT.fullmatch(asked.ref):
        return ""
    entry = pins.read(LockedBuild)
    used = kept_facts(record, "source", "ref_stamp")
    if entry is None or entry.git != asked:
        return "" if used is None else "unlocked"
    if used is not None and used["source"].get("commit") == entry.commit:
        return str(used["ref_stamp"])
    return entry.commit


def _content(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError:
        return MISSING


def _file(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return MISSING
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _folder(folder: Path) -> str:
    entries = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".git")
        entries += [f"{_file(Path(parent, name))}" for name in sorted(files)]
    return data_sha256(entries) if entries else MISSING
