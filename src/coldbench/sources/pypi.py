"""Downloads from the Python package registry, through pip and so through the user's settings."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from coldbench.common.errors import ColdbenchError
from coldbench.common.hashing import file_sha256, folder_key
from coldbench.common.locks import machine
from coldbench.common.scratch import scratch

log = logging.getLogger(__name__)


def download_sdist(requirement: str, sha256: str, cache: Path) -> Path:
    """Return the sdist of `requirement` (name==version), whose hash is `sha256` (64 hex digits).

    It lies in downloads/<sha256>/ of the cache; a good one already there is not fetched again.
    Raises ColdbenchError where it cannot be had, or is another file than the hash says.
    """
    name = requirement.partition("==")[0]
    folder = cache / "downloads" / sha256
    with _alone(folder):
        for present in _files(folder):
            if file_sha256(present) == sha256:
                return present
            present.unlink()
        # Only this package must come as source; what its build needs may come as wheels.
        with _download(requirement, cache, "--no-binary", name) as (path,):
            found = file_sha256(path)
            if found != sha256:
                raise ColdbenchError(
                    f"{requirement}: the downloaded {path.name} has sha256 {found}, the study says "
                    f"{sha256}; correct the study if it names another release, else do not trust it"
                )
            return path.replace(folder / path.name)


def download_wheel(requirement: str, cache: Path) -> Path:
    """Return the wheel of `requirement` (name==version), fetched if it is not in the cache.

    Raises ColdbenchError where it cannot be had. The caller checks the content it wants.
    """
    name, _, version = requirement.partition("==")
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}-".lower()
    folder = cache / "downloads" / folder_key(requirement)
    with _alone(folder):
        for present in _files(folder):
            if present.name.lower().startswith(stem) and present.suffix == ".whl":
                return present
        with _download(requirement, cache, "--only-binary", ":all:") as (path,):
            return path.replace(folder / path.name)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            yield
    except OSError as error:
        raise ColdbenchError(f"{folder}: cannot be written: {error.strerror}") from error


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


@contextmanager
def _download(requirement: str, cache: Path, *choice: str) -> Iterator[list[Path]]:
    """Yield the one file that pip fetched, in a folder that goes with the context."""
    command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", *choice]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    with scratch(cache, "download") as temporary:
        with machine(alone=False, purpose=f"download of {requirement}"):
            log.info("downloading %s", requirement)
            result = subprocess.run(
                [*command, "--dest", str(temporary)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1"},
                check=False,
            )
        files = _files(temporary)
        if result.returncode != 0 or len(files) != 1:
            raise ColdbenchError(f"{requirement}: download failed: {_reason(result.stderr)}")
        yield files


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"pip is not installed beside {sys.executable}; run the set-up again"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip gave no reason"])[-1]
    # pip ends with 'no matching distribution' also where it reached nothing at all.
    if any("Retrying (" in line for line in lines):
        reason += (
            " (connections failed: is this machine offline, or is pip's index or proxy wrong?)"
        )
    return reason
