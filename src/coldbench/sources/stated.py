"""What an engine's programs say of themselves: the commit and number that were compiled in.

They only label: a build is named by its source and its content. A shallow clone makes every program
say number 1, and one built by hand from another commit says so nowhere else.
"""

import logging
import os
import re
import subprocess
from mmap import ACCESS_READ
from mmap import mmap as mapped
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

TIME_LIMIT_S = 10
# llama.cpp, `--version`: `version: 4382 (1a2b3c4d)`, later `version: 0.5.0 (build 1, commit 1a2b)`.
_FORMAT = b"built with %s for %s"
_VERSION = re.compile(
    r"^version: .*?(?:(\d+) \((\w+)\)|\(build (\d+), commit (\w+)\))", re.MULTILINE
)
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def labelled(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return a build's record with what its programs say, and notes for its rows.

    `stated` is commit and number, None where no program says any; `notes` tells of a commit that
    is not the source's.
    """
    files = [Path(one["path"]) for one in (record["programs"] | record["libraries"]).values()]
    said = None
    if any(map(_speaks, files)):
        programs = (Path(one["path"]) for one in record["programs"].values())
        said = next(filter(None, map(_stated, programs)), None)
    source = record["source"]["commit"]
    notes = []
    if said and source and _differ(said["commit"], source):
        notes.append(
            f"the programs of build {name} say commit {said['commit']}, its source is {source}: "
            "the build is named by its source"
        )
        log.info("%s", notes[0])
    return record | {"stated": said, "notes": notes}


def _speaks(file: Path) -> bool:
    """Tell whether a program or library has the engine's words: others are not run."""
    if file.stat().st_size == 0:
        return False
    with file.open("rb") as stream, mapped(stream.fileno(), 0, access=ACCESS_READ) as data:
        return data[:4] == b"\x7fELF" and data.find(_FORMAT) >= 0


def _stated(program: Path) -> dict[str, Any] | None:
    try:
        done = subprocess.run(
            [program, "--version"],
            env={"PATH": os.defpath, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    if found is None:
        return None
    number, commit = filter(None, found.groups())
    return {"commit": commit, "number": int(number)}


def _differ(one: str, other: str) -> bool:
    commits = one.lower(), other.lower()
    if not all(map(_COMMIT.fullmatch, commits)):  # "unknown", or a label of the user's
        return False
    return not (commits[0].startswith(commits[1]) or commits[1].startswith(commits[0]))
