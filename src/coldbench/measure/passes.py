"""Which runs a block still has to make: what was interrupted, refused, void or disturbed."""

from collections.abc import Iterable
from typing import TypeAlias

from coldbench.measure.journal import Journal, PlannedRun
from coldbench.records import CacheState, Run

Key: TypeAlias = tuple[CacheState, str]
"""A cache state and a cell: what a block runs once a pass."""

VOID_ATTEMPTS = 3
"""How often a run is made until one is not void; all attempts are kept and counted."""


TO_MEND = {"refused", "not cold", "not warm"}
"""Outcomes that say nothing of the arm: whatever was in the way may be gone when a job begins."""


def unplanned(journal: Journal, keys: Iterable[Key]) -> list[Key]:
    """Return what no pass of the manifest has."""
    return [key for key in keys if not journal.passes(*key)]


def latest(journal: Journal, keys: Iterable[Key]) -> list[PlannedRun]:
    """Return the planned run of each key in the last pass that has it, in the manifest's order."""
    last = {journal.passes(*key)[-1].run for key in keys}
    return [run for run in journal.manifest if run.run in last]


def missing(journal: Journal, planned: PlannedRun) -> bool:
    """Return whether a job that begins has this run to make: it was not made, or not for good."""
    attempts = journal.attempts(planned)
    return not attempts or attempts[-1].status in TO_MEND or void(attempts)


def void(attempts: list[Run]) -> bool:
    """Return whether a run still wants another attempt; those to mend do not count against it."""
    made = [run for run in attempts if run.status not in TO_MEND]
    return attempts[-1].status == "void" and len(made) < VOID_ATTEMPTS


def wants_repeat(journal: Journal, keys: Iterable[Key], repeats: int) -> bool:
    """Return whether the whole block is to be measured again in a new pass.

    It is where the last run of a key was disturbed, or somebody else changed the page cache under
    it, and it has had at most `repeats` passes: told by manifest and journal alone, so that a job
    that continues a killed one comes to the same.
    """
    for key in keys:
        passes = journal.passes(*key)
        attempts = journal.attempts(passes[-1])
        if attempts and _spoilt(attempts[-1]) and len(passes) <= repeats:
            return True
    return False


def _spoilt(run: Run) -> bool:
    disproved = run.status in {"not cold", "not warm"} and run.exit.ended != "not started"
    return disproved or run.status == "disturbed"
