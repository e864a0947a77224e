"""Who may use the machine: measuring wants it alone, builds and downloads may share it.

One advisory lock file for the whole machine, taken exclusively by a measuring job and shared by
builds and downloads (flock(2), so it is released when its holder dies, however it dies). It holds
whatever `snakemake` was asked for on the command line, and between workflows of several users.
"""

import errno
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldbench.common.errors import ColdbenchError

log = logging.getLogger(__name__)

POLL_S = 0.2


def machine_lock_path() -> Path:
    """Return the machine's lock file (overridden by $COLDBENCH_LOCK, for tests and containers)."""
    return Path(
        os.environ.get("COLDBENCH_LOCK") or Path(tempfile.gettempdir()) / "coldbench-machine.lock"
    )


@contextmanager
def machine(*, alone: bool, purpose: str) -> Iterator[None]:
    """Hold the machine: `alone` for measuring, together with others for builds and downloads.

    Waits as long as it takes and says in the log what it waits for. Raises ColdbenchError where
    the lock file cannot be opened.
    """
    path = machine_lock_path()
    try:
        descriptor = _open(path)
    except OSError as error:
        raise ColdbenchError(
            f"{path}: the machine's lock file cannot be opened: {error.strerror}; "
            "set COLDBENCH_LOCK to a file that all users of this machine can write"
        ) from error
    mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    waiting = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    waiting = True
                    log.info("%s: waiting for %s on this machine", purpose, _holder(descriptor))
                time.sleep(POLL_S)
        if alone:
            _tell(descriptor, f"{os.getpid()} {purpose}")
        yield
        if alone:
            _tell(descriptor, "")
    finally:
        os.close(descriptor)


def _tell(descriptor: int, text: str) -> None:
    with suppress(OSError):  # a full disk costs those who wait only the name of whom they wait for
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(errors="replace")[:500], 0)


def _holder(descriptor: int) -> str:
    """Return who measures, as far as the lock file tells: a job that was killed tells no more."""
    pid, _, purpose = os.pread(descriptor, 500, 0).decode(errors="replace").partition(" ")
    if purpose and pid.isdecimal() and Path("/proc", pid).exists():
        return f"{' '.join(purpose.split())} (process {pid})"
    return "another coldbench job"


def keep_alone(folder: Path) -> None:
    """Claim a results folder for the rest of this process's life.

    Raises ColdbenchError where another process has it, and where it cannot be written.
    Unlike a lock file that names its owner, nothing stays behind when this process is killed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _open(folder / ".lock")
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            # The lock is everybody's: it opens in a folder of another user's as well.
            os.close(descriptor)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        raise ColdbenchError(
            f"{error.filename or folder}: results cannot be written here: {error.strerror}; "
            "mend that or choose another folder (--config results=FOLDER)"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ColdbenchError(
            f"{folder}: another workflow is working here; wait for it or stop it"
        ) from None
    # The descriptor is kept open on purpose; jobs do not inherit it (O_CLOEXEC).


def _open(path: Path) -> int:
    # Without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on another user's file
    # (fs.protected_regular).
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor
