"""Host settings of an arm: in force for one run, put back whatever ends it.

A guard of its own session waits at a pipe that only the measuring job holds open. When the pipe
closes, because the run is over or because the job was killed, the guard writes the old values. A
journal beside the machine's lock file has them too: should the guard be killed as well, the next
measuring job puts them back.
"""

import fcntl
import json
import logging
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import read_json, write_json
from coldbench.common.locks import machine_lock_path
from coldbench.measure.host import read_ahead_file
from coldbench.study.treatment import Host

log = logging.getLogger(__name__)

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OURS = re.compile(rf"/sys/devices/[^\0]+/read_ahead_kb|{re.escape(str(HUGE_PAGES))}")
"""The only files that a journal may name: it stands where others may write."""

_GUARD = """\
cat > /dev/null
journal=$1 failed=; shift
while [ $# -gt 1 ]; do printf %s "$2" > "$1" || failed=1; shift 2; done
[ "$failed" ] || rm -f -- "$journal"
"""
"""Arguments: the journal, then file and value in turn. A journal that is still needed stays."""


class NotPutBackError(ColdbenchError):
    """The machine is not as it was found: nothing may be measured on it."""


class Changed:
    """What the settings of a run came to, once it is over.

    `values` are those in force, by key; `disturbed` says which another changed meanwhile, or is
    empty.
    """

    def __init__(self, values: dict[str, int | str]) -> None:
        self.values = values
        self.disturbed = ""


@contextmanager
def in_force(settings: Host, model: Path) -> Iterator[Changed]:
    """Have `settings` in force, on the device of the file `model`, as long as the context lasts.

    Raises ColdbenchError where one cannot be set, NotPutBackError where it cannot be put back.
    """
    if not settings.given:
        yield Changed({})
        return
    files = {key: _file(key, model) for key in settings.given}
    before = {key: _value(path) for key, path in files.items()}
    with _restored({files[key]: before[key] for key in files}):
        for key, path in files.items():
            _set(path, str(settings.given[key]))
        changed = Changed(dict(settings.given))
        yield changed
        changed.disturbed = "; ".join(
            f"{key} was {seen} after the run, not {settings.given[key]}: something else set it"
            for key, path in files.items()
            if (seen := _value(path)) != str(settings.given[key])
        )


def put_back_left_over() -> None:
    """Put back what a job that was killed together with its guard has left; tell of it.

    For a job that holds the machine. Of an earlier boot nothing is left. Another user's journal is
    not believed, and stays. Raises NotPutBackError.
    """
    journal = _journal()
    try:
        descriptor = os.open(journal, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # there is none, or it is another user's, or a link
        return
    with open(descriptor, "rb+", buffering=0) as stream:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            return
        # A guard that is still at work has it locked; it would undo what this job sets.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not os.path.lexists(journal):
            return
        try:
            noted = json.loads(stream.read())
            files = {str(path): str(value) for path, value in noted["files"].items()}
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            files, noted = {}, {}
    if noted.get("boot") == _boot():
        for path, value in files.items():
            if not _OURS.fullmatch(path) or os.path.realpath(path) != path:
                log.warning("%s: names %s, which no run of ours changes: left alone", journal, path)
            elif _put_back(Path(path), value):
                log.warning(
                    "%s: set back to %s, as it was before a run that was killed", path, value
                )
    journal.unlink(missing_ok=True)


def _make_way(journal: Path) -> None:
    """Refuse to write over a journal that has values of before, which may be another user's."""
    if not os.path.lexists(journal):
        return
    mend = "have that user measure again, or see to them and delete the file"
    what = "another user's run was killed and left settings of this machine changed"
    try:
        of_earlier_boot = (
            stat.S_ISREG(journal.lstat().st_mode) and read_json(journal)["boot"] != _boot()
        )
        if of_earlier_boot:
            what, mend = "another user left it before this machine was started", "delete it"
            journal.unlink()
            return
    except (ColdbenchError, LookupError, TypeError, OSError):
        pass  # not ours to judge or to delete
    raise ColdbenchError(f"{journal}: {what}; {mend}")


@contextmanager
def _restored(before: dict[Path, str]) -> Iterator[None]:
    journal = _journal()
    _make_way(journal)
    write_json(journal, {"boot": _boot(), "files": {str(p): value for p, value in before.items()}})
    words = [word for path, value in before.items() for word in (str(path), value)]
    with journal.open("r+b") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)  # until the guard ends: it inherits the lock
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "coldbench-guard", str(journal), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            pass_fds=[locked.fileno()],
            preexec_fn=_outlive,
        )
    assert guard.stdin is not None
    try:
        yield
    finally:
        guard.stdin.close()
        guard.wait()
        for path, value in before.items():
            _put_back(path, value)  # again, should the guard have been killed
        journal.unlink(missing_ok=True)


def _outlive() -> None:
    """Ignore what ends other processes, from before the first instruction on (signal(7), exec)."""
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(kind, signal.SIG_IGN)


def _file(key: str, model: Path) -> Path:
    path = HUGE_PAGES if key == "transparent_hugepage" else read_ahead_file(model)
    if path is None or not path.exists():
        raise ColdbenchError(f"host: {key}: this machine does not have it; remove the setting")
    return path.resolve()


def _value(path: Path) -> str:
    """Return a setting's value; of a list of choices, the one in brackets."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be read: {error.strerror}") from error
    return found[1] if (found := re.search(r"\[(\S+)\]", text)) else text


def _set(path: Path, value: str) -> None:
    try:
        path.write_text(value, encoding="utf-8")
    except OSError as error:
        raise ColdbenchError(
            f"host: {path}: cannot be set to {value}: {error.strerror}; "
            "measure as root where /sys can be written, or leave the arm out"
        ) from error
    if (seen := _value(path)) != value:
        raise ColdbenchError(f"host: {path}: the kernel made {seen} of {value}; ask for {seen}")


def _put_back(path: Path, value: str) -> bool:
    """Return whether it had to be; of a device that is gone nothing is left."""
    try:
        if not path.exists() or _value(path) == value:
            return False
        _set(path, value)
        return True
    except ColdbenchError as error:
        raise NotPutBackError(
            f"{path}: could not be put back to {value}, as it was before a run; "
            f"write it there yourself, then run the same command again ({error})"
        ) from error


def _journal() -> Path:
    return machine_lock_path().with_suffix(".settings.json")


def _boot() -> str:
    return _BOOT.read_text(encoding="ascii").strip()
