"""What a block still has to make, told by its manifest and journal alone."""

from pathlib import Path

from coldbench.measure import passes
from coldbench.measure.journal import Journal
from coldbench.records import Status

from .test_journal import planned, record

KEYS: list[passes.Key] = [("cold", "a"), ("cold", "b")]


def journal_of(folder: Path, *outcomes: dict[str, Status]) -> Journal:
    """Return a journal with one pass of the two cells for each mapping of cell to status."""
    journal = Journal(folder, "block-001")
    for pass_, by_cell in enumerate(outcomes, start=1):
        runs = [planned(n, cell, pass_) for n, cell in enumerate("ab", start=1)]
        journal.plan(runs)
        for run in runs:
            if run.cell in by_cell:
                journal.append(record(run, status=by_cell[run.cell]))
    return Journal(folder, "block-001")


def missing(journal: Journal) -> list[str]:
    return [run.run for run in passes.latest(journal, KEYS) if passes.missing(journal, run)]


def test_a_new_block_lacks_everything(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "block-001")
    assert passes.unplanned(journal, KEYS) == KEYS
    journal.plan([planned(1, "a")])
    assert passes.unplanned(journal, KEYS) == [("cold", "b")]


def test_what_was_not_made_is_made_by_the_next_job_and_outcomes_stay(tmp_path: Path) -> None:
    for status, again in (
        ("ok", False), ("failed", False), ("over budget", False), ("invalid", False),
        ("not delivered", False), ("disturbed", False),
        ("refused", True), ("not cold", True), ("not warm", True), ("void", True),
    ):  # fmt: skip
        journal = journal_of(tmp_path / status, {"a": "ok", "b": status})
        assert missing(journal) == (["001.1.002"] if again else []), status


def test_void_runs_have_three_attempts_and_refusals_none_of_them(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, {"a": "ok", "b": "not cold"})
    run = planned(2, "b")
    for attempt, status in enumerate(("refused", "void", "void"), start=2):
        journal.append(record(run, status=status, attempt=attempt))
        assert passes.missing(journal, run)
    journal.append(record(run, status="void", attempt=5))
    assert not passes.missing(journal, run)


def test_a_disturbed_block_is_repeated_at_most_as_often_as_asked(tmp_path: Path) -> None:
    first: dict[str, Status] = {"a": "ok", "b": "disturbed"}
    once = journal_of(tmp_path / "1", first)
    assert [passes.wants_repeat(once, KEYS, repeats) for repeats in (0, 1, 2)] == [
        False, True, True
    ]  # fmt: skip
    twice = journal_of(tmp_path / "2", first, {"a": "disturbed", "b": "ok"})
    assert [passes.wants_repeat(twice, KEYS, repeats) for repeats in (1, 2)] == [False, True]
    mended = journal_of(tmp_path / "3", first, {"a": "ok", "b": "failed"})
    assert not passes.wants_repeat(mended, KEYS, 2)


def test_a_repeat_that_was_killed_is_finished_and_not_begun_again(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, {"a": "ok", "b": "disturbed"}, {"a": "ok"})
    assert not passes.wants_repeat(journal, KEYS, 2)
    assert missing(journal) == ["001.2.002"]
    assert not passes.unplanned(journal, KEYS)


def test_what_an_earlier_pass_lacks_is_not_made_any_more(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, {"a": "refused", "b": "disturbed"}, {"a": "ok", "b": "ok"})
    assert missing(journal) == []
