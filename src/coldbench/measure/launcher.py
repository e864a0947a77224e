"""Run one engine process through the native launcher, and watch that somebody still wants it."""

import errno
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import cache_folder
from coldbench.common.scratch import scratch
from coldbench.drivers.base import Mark
from coldbench.measure.cgroup import NO_GROUP, Group
from coldbench.measure.reads import attributed
from coldbench.records import Exit, Io, Memory

log = logging.getLogger(__name__)

ENVIRONMENT_BYTES = 4096
PAD = "COLDBENCH_PAD"
"""The variable that fills the environment up; it says nothing and need not be recorded."""


class LauncherError(ColdbenchError):
    """The launcher itself could not do its work, so that there is no run to record."""


class LauncherKilledError(ColdbenchError):
    """Somebody killed the launcher, and the program with it: how the run went is unknown."""


_WATCH_MS = 500
_GRACE_S = 15.0


@dataclass(frozen=True)
class Launched:
    """A finished process. `started` is ISO 8601 in UTC, with microseconds.

    `loaded` are the files it had mapped as code, those deleted meanwhile with a ` (deleted)` at
    their end, as proc_pid_maps(5) shows them; None where it ended before it could be asked.
    `marks` are the times, in seconds since the exec, at which the texts that were asked for first
    stood on their streams, in that order; None for one that never did.
    """

    exit: Exit
    memory: Memory
    io: Io
    started: str
    loaded: tuple[str, ...] | None = None
    marks: tuple[float | None, ...] = ()


def environment_for(extra: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the whole environment of a run: a constant base, `extra`, and a filling variable.

    Nothing of the caller's environment is inherited, so no LLAMA_* or GGML_* setting can slip in;
    `home`, an empty folder, stands for every place where an engine looks for a user's files. The
    size of the block (the bytes of all KEY=VALUE, each with its closing 0) is always a multiple
    of ENVIRONMENT_BYTES, since it shifts the stack of a program and by that alone its speed
    (Mytkowicz, Diwan, Hauswirth, Sweeney: Producing wrong data without doing anything obviously
    wrong!, ASPLOS 2009).
    """
    environment = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_CONFIG_DIRS": str(home),
        "XDG_CACHE_HOME": str(home),
        "TMPDIR": tempfile.gettempdir(),
        "GGML_NO_BACKTRACE": "1",
        **dict(sorted(extra.items())),
        PAD: "",
    }
    used = sum(len(os.fsencode(f"{key}={value}")) + 1 for key, value in environment.items())
    environment[PAD] = "." * (-used % ENVIRONMENT_BYTES)
    return environment


def launch(
    launcher: Path,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: Path,
    stderr: Path,
    time_limit_s: float,
    output_limit_bytes: int,
    group: Group = NO_GROUP,
    cpus: str | None = None,
    marks: Sequence[Mark] = (),
) -> Launched:
    """Run `argv` (its first item a path) in exactly `environment` and wait for its end.

    The streams go to the two files, whose sizes together may reach `output_limit_bytes`; `group`
    is the control group to run in, `cpus` a list such as `0-3,8`. Whatever the
    program started is dead on return, also after an exception here, and after SIGKILL of this
    process. Where a process above this one in the same shell job disappears (somebody killed the
    workflow but not us), the program is stopped and this process exits at once with status 1:
    an orphan must not measure on beside its successor.

    How the program ended is in the result, also that it could not be started. Reads and faults
    are those of the program and of the children it waited for. Peak RSS is the program's own: the
    kernel's last word where it waited for no child, else its high-water mark (VmHWM) at the last
    sample, at most 50 ms before its end. The split and the tree's sum are sampled too (every 50
    ms, at the start oftener), so they are None where the program ended too soon; in the sum, pages
    that processes share count once for each, as in any sum of RSS. Code files are read after 1,
    2, 4, ... ms, so a library that is loaded late may be missed. A mark's time is late by one
    wake-up of the launcher, never early: below 1 ms on an idle CPU, some 5 ms where all are busy.
    Raises LauncherError where the
    launcher itself could not do its work, LauncherKilledError where it was killed, and
    ColdbenchError where the command line is too long for the kernel.
    """
    supervisors = _supervisors()
    with scratch(cache_folder(), "launch") as folder:
        report = folder / "report.json"
        command = [
            str(launcher),
            *("--parent", str(os.getpid()), "--report", str(report)),
            *("--stdout", str(stdout), "--stderr", str(stderr)),
            *("--time-limit", repr(time_limit_s), "--output-limit", str(output_limit_bytes)),
            *(word for procs in group.procs for word in ("--cgroup", str(procs))),
            *(("--cpus", cpus) if cpus else ()),
            *(word for mark in marks for word in ("--mark", f"{mark.stream}:{mark.text}")),
            "--",
            *argv,
        ]
        own: Mapping[str, str] = environment
        if group.enter:
            # What enters the group first needs our environment; what it starts must not have it.
            settings = (f"{key}={value}" for key, value in environment.items())
            command = [*group.enter, shutil.which("env") or "env", "-i", *settings, *command]
            own = os.environ
        reads = group.read_bytes()
        try:
            process = subprocess.Popen(
                command,
                env=dict(own),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise ColdbenchError(
                    f"{argv[0]}: arguments and environment are longer than the kernel takes; "
                    "shorten them (prompt, args, environment)"
                ) from error
            raise LauncherError(
                f"{launcher}: cannot be started: {error.strerror}; delete it to have it built again"
            ) from error
        try:
            said = _wait(process, supervisors)
        finally:
            _stop(process)
        if process.returncode < 0:
            raise LauncherKilledError(
                f"{argv[0]}: its launcher was killed by signal {-process.returncode}"
            )
        if process.returncode > 0:
            raise LauncherError(
                f"{argv[0]}: cannot be run: {said.strip()}; "
                "mend that and run the same command again"
            )
        facts = json.loads(report.read_text(encoding="utf-8"))
    launched = _launched(facts, argv[0], time_limit_s, output_limit_bytes)
    if launched.exit.ended == "not started":
        return launched
    return replace(launched, io=attributed(launched.io, group.route, reads, group.read_bytes()))


def _wait(process: subprocess.Popen[bytes], supervisors: list[int]) -> str:
    """Wait until the launcher closes its stderr, that is, ends; return what it said."""
    assert process.stderr is not None
    said = b""
    poll = select.poll()
    poll.register(process.stderr, select.POLLIN | select.POLLHUP)
    while True:
        if poll.poll(_WATCH_MS):
            chunk = os.read(process.stderr.fileno(), 65536)
            if not chunk:
                process.wait()
                return said.decode(errors="replace")
            said += chunk
        elif _supervisors() != supervisors:
            log.error("the workflow that asked for this run is gone; the run is stopped")
            _stop(process)
            os._exit(1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        process.kill()
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _supervisors() -> list[int]:
    """Return the pids above this process that belong to its shell job, nearest first.

    A job is a process group: make, snakemake and its children share one, while the login shell
    has another, and may end under `nohup` without harm.
    """
    job = os.getpgrp()
    above: list[int] = []
    process = psutil.Process().parent()
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        while process is not None and os.getpgid(process.pid) == job:
            above.append(process.pid)
            process = process.parent()
    return above


def _launched(
    facts: dict[str, Any], program: str, time_limit_s: float, output_limit_bytes: int
) -> Launched:
    started = datetime.fromtimestamp(facts["started_unix_s"], UTC).isoformat(
        timespec="microseconds"
    )
    if facts["ended"] == "not started":
        subject = program if facts["step"] == "exec" else facts["step"]
        detail = f"{subject}: {os.strerror(facts['errno'])}"
        return Launched(Exit(ended="not started", detail=detail), Memory(), Io(), started)
    known = {key: None if value == -1 else value for key, value in facts.items()}

    def size(name: str) -> int | None:
        value = known[f"{name}_kb"]
        return None if value is None else value * 1024

    return Launched(
        exit=Exit(
            ended=known["ended"],
            code=known["code"],
            signal=known["signal"],
            detail=_detail(known, time_limit_s, output_limit_bytes),
            wall_s=known["wall_s"],
            user_s=known["user_s"],
            system_s=known["system_s"],
        ),
        memory=Memory(
            peak_rss_bytes=size("peak_rss"),
            anon_at_peak_bytes=size("anon"),
            file_at_peak_bytes=size("file"),
            shmem_at_peak_bytes=size("shmem"),
            swap_at_peak_bytes=size("swap"),
            peak_locked_bytes=size("locked"),
            tree_peak_rss_bytes=size("tree"),
            processes=known["processes"],
        ),
        io=Io(
            read_bytes=known["read_bytes"],
            rchar_bytes=known["rchar_bytes"],
            major_faults=known["major_faults"],
            minor_faults=known["minor_faults"],
        ),
        started=started,
        loaded=None if known["loaded"] is None else tuple(map(_name, known["loaded"])),
        marks=tuple(None if seen < 0 else seen for seen in facts["marks"]),
    )


def _name(bytes_as_characters: str) -> str:
    return bytes_as_characters.encode("latin-1").decode("utf-8", "backslashreplace")


def _detail(known: dict[str, Any], time_limit_s: float, output_limit_bytes: int) -> str:
    if known["ended"] == "time limit":
        detail = f"did not end within {time_limit_s:g} s"
    elif known["ended"] == "output limit":
        detail = f"wrote more than {output_limit_bytes} bytes"
    elif known["signal"] is not None:
        detail = signal.strsignal(known["signal"]) or ""
    else:
        detail = ""
    if known["stopped_by"] is not None:
        detail += f", after the launcher got signal {known['stopped_by']}"
    if not known["swept"]:
        detail += ", processes it started could not be killed"
    return detail.removeprefix(", ")
