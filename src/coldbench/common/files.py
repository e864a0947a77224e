"""Writing files so that a kill or a full disk never leaves half of one under its real name."""

import fcntl
import glob
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError

_RANDOM_LETTERS = 8
"""Of the names that mkstemp makes."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is fsynced and takes that name.

    What a killed writer left there is removed first.

    Raises ColdbenchError where the disk is full or the folder cannot be written.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(path)
        handle, name = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "rb") as held:
            with suppress(OSError):  # not every file system has locks: what is left there stays
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.chmod(0o644)
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
    except OSError as error:
        if error.filename is not None and not _concerns(error, path, temporary):
            raise
        raise ColdbenchError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    return f".{path.name[:64]}."


def _remove_left_over(path: Path) -> None:
    """Remove what earlier writers of `path` left when they were killed: nobody holds its lock."""
    random = "?" * _RANDOM_LETTERS
    for left in path.parent.glob(f"{glob.escape(_prefix(path))}{random}"):
        with suppress(OSError), left.open("rb+") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _concerns(error: OSError, path: Path, temporary: Path | None) -> bool:
    return str(error.filename) in {str(path), str(path.parent), str(temporary)}


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text to `path` in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON to `path` in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, needs: Collection[str] = ()) -> Any:
    """Read a JSON file that coldbench wrote, a mapping that has the keys `needs`.

    Raises ColdbenchError where it is missing, damaged or something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if missing := [key for key in needs if not isinstance(value, dict) or key not in value]:
            raise ValueError(f"it has no {missing[0]}")
    except (OSError, ValueError, RecursionError) as error:
        raise ColdbenchError(
            f"{path}: unreadable ({error}); delete it and run the workflow again"
        ) from error
    return value


def read_records(
    paths: Iterable[str | os.PathLike[str]], needs: Collection[str] = ()
) -> dict[str, Any]:
    """Read JSON records by their names, the files' stems; raises ColdbenchError as read_json."""
    return {Path(path).stem: read_json(Path(path), needs) for path in paths}
