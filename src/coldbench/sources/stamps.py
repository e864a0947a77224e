"""Cheap fingerprints of what lies outside the study file, so that a change of it is noticed.

They only decide whether a job runs again; what it then finds is hashed in full.
"""

import os
from pathlib import Path

from coldbench.common.folders import expanded
from coldbench.common.hashing import data_sha256, file_sha256
from coldbench.study.schema import BinariesSource, Build, FolderSource, Model, PathSource

MISSING = "missing"


def model_stamp(model: Model) -> str:
    """Return a fingerprint of a `path` model's first file (size, times); empty for others."""
    if not isinstance(model.source, PathSource):
        return ""
    return _file(expanded(model.source.path))


def build_stamp(build: Build) -> str:
    """Return a fingerprint of a build's patches (content) and local folder (sizes, times)."""
    stamps = [_content(expanded(patch)) for patch in build.patches or ()]
    match build.source:
        case FolderSource(folder=folder) | BinariesSource(binaries=folder):
            stamps.append(_folder(expanded(folder)))
    return data_sha256(stamps) if stamps else ""


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
