"""Where expensive products live: a content-addressed cache outside the checkout."""

import os
import shutil
from pathlib import Path

from coldbench.common.errors import ColdbenchError


def expanded(path: str) -> Path:
    """Return a path with `~` and `~USER` replaced; raises ColdbenchError for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ColdbenchError(
            f"{path}: there is no home folder of that name; write the folder out"
        ) from None


def cache_folder() -> Path:
    """Return the cache's root: $COLDBENCH_CACHE, else coldbench/ in the user's cache folder.

    The path is absolute and resolved. Nothing is created.
    """
    named = os.environ.get("COLDBENCH_CACHE")
    if named:
        return expanded(named).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (expanded(base) / "coldbench").resolve()


def need_space(
    folder: Path, need_bytes: int, purpose: str, variable: str = "COLDBENCH_CACHE"
) -> None:
    """Refuse to begin what the disk cannot hold.

    `folder` need not exist yet; `variable` is the environment variable that moves it. Raises
    ColdbenchError naming the folder and both sizes.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < need_bytes:
        raise ColdbenchError(
            f"{folder}: {purpose} needs {_amount(need_bytes)} of disk, {_amount(free)} are free; "
            f"free some or set {variable} to another disk"
        )


def _amount(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
