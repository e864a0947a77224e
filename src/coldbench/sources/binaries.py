"""Builds that were compiled elsewhere: a folder of programs, taken in as it is."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.common.folders import expanded, need_space
from coldbench.common.hashing import file_sha256, folder_key
from coldbench.common.locks import machine
from coldbench.sources.built import FORMAT, describe_files, present, publishing
from coldbench.study.builds import BinariesSource


def ready_build(name: str, source: BinariesSource, cache: Path) -> dict[str, Any]:
    """Return the record of a build from ready programs, which are copied with all beside them.

    The record has the keys of a compiled build's, those without a meaning here empty or None.
    Raises ColdbenchError where the folder is missing, unreadable or has no program.
    """
    folder = Path(os.path.realpath(expanded(source.binaries)))
    if not folder.is_dir():
        raise ColdbenchError(f"build {name}: folder of binaries {folder} does not exist")
    try:
        files = {str(path.relative_to(folder)): path for path in _walk(folder)}
        hashes = {path: file_sha256(file) for path, file in files.items()}
        programs = {path for path, file in files.items() if _is_program(path, file)}
        size = sum(file.stat().st_size for file in files.values())
    except OSError as error:
        raise ColdbenchError(
            f"build {name}: {error.filename or folder}: {error.strerror}"
        ) from error
    if not programs:
        raise ColdbenchError(f"build {name}: {folder} holds no executable file")
    facts = {"binaries": str(folder), "commit": source.commit}
    key = folder_key([FORMAT, hashes, sorted(programs)])
    if found := present(cache, key, facts):
        return found
    need_space(cache, size, f"build {name}")
    record: dict[str, Any] = {
        "source": facts,
        "base_tree": None,
        "patches": [],
        "tree": None,
        "cmake": {},
        "unused_cmake": [],
        "environment": {},
        "targets": [],
        "compiler": {},
        "cpu": {},
        "tools": {},
        "seconds": None,
        "ccache": {},
        "log": None,
    }
    with machine(alone=False, purpose=f"build {name}"), publishing(cache, key) as (staging, final):
        for path, file in files.items():
            copy = staging / "bin" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
            if file_sha256(copy) != hashes[path]:
                raise ColdbenchError(f"build {name}: {file} changed while it was copied; run again")
        record |= describe_files(staging / "bin", final / "bin", programs)
        write_json(staging / "record.json", record)
    return record


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files of a folder, through links, each linked folder once."""
    seen: set[str] = set()

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, followlinks=True, onerror=fail):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield from (Path(parent) / name for name in sorted(files))


def _is_program(path: str, file: Path) -> bool:
    is_library = re.search(r"\.so(\.|$)", path) is not None
    return "/" not in path and not is_library and bool(file.stat().st_mode & 0o111)
