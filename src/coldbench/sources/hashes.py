"""SHA-256 of large files, read once for as long as a file's inode, size and times stay."""

import os
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import read_json, write_json
from coldbench.common.hashing import file_sha256, folder_key
from coldbench.common.locks import machine


def stamps(status: os.stat_result) -> dict[str, int]:
    """Return what tells without reading that a file has changed: size (bytes) and times (ns)."""
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }


def hash_of(path: Path, cache: Path) -> str:
    """Return a file's SHA-256 (hex); raises ColdbenchError where it cannot be read."""
    entry = _entry(path, cache)
    try:
        if (known := _kept(entry)) is not None:
            return known
        with machine(alone=False, purpose=f"hash of {path.name}"):
            sha256 = file_sha256(path, uncached=True)
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be read: {error.strerror}") from error
    if _entry(path, cache) != entry:
        raise ColdbenchError(f"{path}: changed while it was hashed; is it still being written?")
    remember_hash(path, cache, sha256)
    return sha256


def known_hash(path: Path, cache: Path) -> str | None:
    """Return a file's SHA-256 if it was read since the file last changed; nothing is read now."""
    try:
        return _kept(_entry(path, cache))
    except OSError:
        return None


def remember_hash(path: Path, cache: Path, sha256: str) -> None:
    """Keep the hash of a file as it is now."""
    write_json(_entry(path, cache), {"path": str(path), "sha256": sha256})


def kept_facts(entry: Path, *keys: str) -> dict[str, Any] | None:
    """Return a small JSON file of the cache; None where it is missing, damaged or lacks a key."""
    try:
        facts: dict[str, Any] = read_json(entry, keys)
    except ColdbenchError:
        return None
    return facts


def _kept(entry: Path) -> str | None:
    facts = kept_facts(entry, "sha256")
    return None if facts is None else str(facts["sha256"])


def _entry(path: Path, cache: Path) -> Path:
    status = path.stat()
    identity = {"device": status.st_dev, "inode": status.st_ino, **stamps(status)}
    return cache / "hashes" / f"{folder_key(identity)}.json"
