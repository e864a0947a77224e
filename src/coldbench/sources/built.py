"""The cache of builds: a folder appears whole or not at all, and is used only while intact."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import read_json
from coldbench.common.hashing import data_sha256, file_sha256
from coldbench.common.scratch import scratch

log = logging.getLogger(__name__)

FORMAT = 1
"""Part of every key: raised when the same inputs would give other programs or records."""


RECORD_KEYS = ("programs", "libraries", "content")
"""What a measurement needs of a record."""


def check_build(record: dict[str, Any]) -> None:
    """Check that a record's programs and libraries are on disk as they were recorded.

    Raises ColdbenchError naming the first one that is not.
    """
    for file in [*record["programs"].values(), *record["libraries"].values()]:
        path = Path(file["path"])
        try:
            found = file_sha256(path)
        except OSError as error:
            raise ColdbenchError(
                f"{path}: {error.strerror}; the cache was changed: run the workflow again with "
                "--forcerun build"
            ) from error
        if found != file["sha256"]:
            raise ColdbenchError(
                f"{path}: has sha256 {found}, was built with {file['sha256']}; the cache was "
                "changed: run the workflow again with --forcerun build"
            )


def present(cache: Path, key: str, facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the cached record of `key` with today's facts of its source, if it is intact."""
    path = cache / "builds" / key / "record.json"
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = read_json(path)
        check_build(record)
    except (ColdbenchError, KeyError, TypeError) as error:
        log.info("%s: made again: %s", path.parent, error)
        return None
    return record | {"source": facts}


@contextmanager
def publishing(cache: Path, key: str) -> Iterator[tuple[Path, Path]]:
    """Yield a staging folder and the final one, whose name the first takes on success."""
    final = cache / "builds" / key
    final.parent.mkdir(parents=True, exist_ok=True)
    with scratch(cache, f"build-{key}") as staging:
        staging.chmod(0o755)
        yield staging, final
        if final.exists():
            # Damaged, or just made by another job from the same inputs.
            final.rename(staging.with_name("old"))
        staging.rename(final)


def describe_files(folder: Path, final: Path, programs: set[str]) -> dict[str, Any]:
    """Describe the files in `folder`, which will be called `final`."""
    found = {
        str(path.relative_to(folder)): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    entries = {path: {"path": str(final / path), "sha256": one} for path, one in found.items()}
    return {
        "programs": {path: entry for path, entry in entries.items() if path in programs},
        "libraries": {path: entry for path, entry in entries.items() if path not in programs},
        "content": data_sha256(found),
    }
