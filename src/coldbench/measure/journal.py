"""What a block means to run and what it has run: two files that only grow.

The manifest is complete on disk before the first of its runs; each finished run is one fsynced
line. Whatever kills a block, what is missing is what the manifest lists and the journal lacks.
"""

import errno
import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_text
from coldbench.records import CacheState, Run

RecordT = TypeVar("RecordT", bound=BaseModel)


class PlannedRun(BaseModel):
    """One run of a manifest, down to its command line and environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    run: str
    block: int
    pass_: int = Field(alias="pass", serialization_alias="pass")
    position: int
    state: CacheState
    arm: str
    build: str
    cell: str
    hashes: dict[str, str]
    argv: list[str]
    environment: dict[str, str]


class Journal:
    """The manifest and the records of one block, at `folder/NAME.manifest.jsonl` and `.jsonl`."""

    def __init__(self, folder: Path, name: str) -> None:
        """Open (or begin) the block `name`; drops a last line that a kill left half-written."""
        self.manifest_path = folder / f"{name}.manifest.jsonl"
        self.runs_path = folder / f"{name}.jsonl"
        _mend_last_line(self.runs_path)
        self.manifest = _records(self.manifest_path, PlannedRun)
        self.runs = read_runs(self.runs_path)
        planned = {(run.run, run.state, run.cell) for run in self.manifest}
        for run in self.runs:
            if (run.run, run.state, run.cell) not in planned:
                raise ColdbenchError(
                    f"{self.manifest_path}: does not list run {run.run}, which {self.runs_path} "
                    "has; restore both files or move both away to measure the block again"
                )

    @property
    def next_pass(self) -> int:
        """Return the number of the pass that would be added now, from 1."""
        return 1 + max((planned.pass_ for planned in self.manifest), default=0)

    def plan(self, runs: list[PlannedRun]) -> None:
        """Add runs to the manifest; they are on disk when this returns."""
        if not runs:
            return
        self.manifest += runs
        lines = [run.model_dump_json(by_alias=True) for run in self.manifest]
        write_text(self.manifest_path, "\n".join(lines) + "\n")

    def passes(self, state: CacheState, cell: str) -> list[PlannedRun]:
        """Return the planned runs of a cell in a cache state, one a pass, oldest first."""
        return [run for run in self.manifest if (run.state, run.cell) == (state, cell)]

    def attempts(self, planned: PlannedRun) -> list[Run]:
        """Return what was recorded for a planned run, oldest first."""
        return [run for run in self.runs if run.run == planned.run]

    def append(self, run: Run) -> None:
        """Add a record; it is on disk when this returns."""
        self.runs_path.parent.mkdir(parents=True, exist_ok=True)
        line = run.model_dump_json(by_alias=True).encode() + b"\n"
        try:
            descriptor = os.open(self.runs_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                whole = os.fstat(descriptor).st_size
                if os.write(descriptor, line) != len(line):
                    os.ftruncate(descriptor, whole)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ColdbenchError(
                f"{self.runs_path}: the run cannot be recorded: {error.strerror}; "
                "mend that and run the same command again"
            ) from None
        self.runs.append(run)


def read_runs(path: Path) -> list[Run]:
    """Read the records of a journal file; a missing file has none.

    Raises ColdbenchError naming the line that is not a record of this format.
    """
    return _records(path, Run)


def _records(path: Path, kind: type[RecordT]) -> list[RecordT]:
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        try:
            records.append(kind.model_validate_json(line))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            kind_of = "damaged line" if fault["type"] == "json_invalid" else "not a run record"
            place = "".join(f"{part}: " for part in fault["loc"])
            raise ColdbenchError(
                f"{path}:{number}: {kind_of} ({place}{fault['msg']}); "
                "restore the file or move it away to measure the block again"
            ) from None
    return records


def _mend_last_line(path: Path) -> None:
    # A line is written with one write(2) and ends in a newline: without one it is what a kill or
    # a full disk left of a run that was not recorded.
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
