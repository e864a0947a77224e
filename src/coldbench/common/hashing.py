"""Content hashes: of files, and of plain data in one canonical spelling."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
KEY_DIGITS = 16
"""Digits of a hash that name a folder: fixed, so that all builds live under equal-length paths."""


def canonical_json(value: Any) -> str:
    """Return `value` as JSON text that is equal exactly when the values are equal."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def data_sha256(value: Any) -> str:
    """Return the SHA-256 (hex) of plain data (dicts, lists, text, numbers, None)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def text_md5(data: bytes) -> str:
    """Return the MD5 (hex) of generated text, the digest readers of pull requests compare."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def file_sha256(path: Path, *, uncached: bool = False) -> str:
    """Return the SHA-256 (hex) of a file, read in bounded memory.

    With `uncached` the page cache keeps nothing of it, nor is what else it holds pushed out by a
    file larger than memory (posix_fadvise(2); pages not yet on the disk stay). Raises OSError where
    the file cannot be read.
    """
    digest = hashlib.sha256()
    have = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            if uncached:
                os.posix_fadvise(stream.fileno(), have, len(chunk), os.POSIX_FADV_DONTNEED)
            have += len(chunk)
        if uncached:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what was read ahead
    return digest.hexdigest()


def folder_key(value: Any) -> str:
    """Return the fixed-length cache folder name of plain data."""
    return data_sha256(value)[:KEY_DIGITS]
