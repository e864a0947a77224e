"""Folders for work in hand: gone when it is done, or when the next begins after a kill."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"


@contextmanager
def scratch(cache: Path, purpose: str) -> Iterator[Path]:
    """Yield an empty folder on the cache's file system; what is moved out of it stays.

    Each is held by a lock (flock(2)) that ends with its process, however that ends: folders that
    nobody holds are removed first. Raises OSError where the cache cannot be written.
    """
    base = cache / "scratch"
    base.mkdir(parents=True, exist_ok=True)
    with (base / _LOCK).open("ab") as gate:
        # Between a folder's making and its locking nobody may take it for one that was left.
        fcntl.flock(gate, fcntl.LOCK_EX)
        for left in base.iterdir():
            if left.is_dir() and not _is_held(left):
                shutil.rmtree(left, ignore_errors=True)
        own = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=base))
        held = (own / _LOCK).open("wb")
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        folder = own / "files"
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(own, ignore_errors=True)
        held.close()


def _is_held(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
