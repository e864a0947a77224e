"""Manifest and journal only grow, and survive what interrupts them."""

from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.journal import Journal, PlannedRun, read_runs
from coldbench.records import Run


def planned(position: int, cell: str = "c", pass_: int = 1) -> PlannedRun:
    return PlannedRun(
        run=f"001.{pass_}.{position:03d}",
        block=1,
        pass_=pass_,
        position=position,
        state="cold",
        arm="arm",
        build="build",
        cell=cell,
        hashes={},
        argv=["engine", "a b", "ü"],
        environment={"A": "1"},
    )


def record(run: PlannedRun, **fields: object) -> Run:
    values = {
        **run.model_dump(exclude={"pass_"}),
        "pass_": run.pass_,
        "study": "s",
        "model": "m",
        "workload": "w",
        "started": "2026-01-01T00:00:00.000000+00:00",
        "host": {},
        "status": "ok",
    }
    return Run.model_validate(values | fields, by_name=True)


def test_the_manifest_is_on_disk_before_any_run(tmp_path: Path) -> None:
    Journal(tmp_path, "block-001").plan([planned(1), planned(2)])
    again = Journal(tmp_path, "block-001")
    assert [run.position for run in again.manifest] == [1, 2]
    assert again.manifest[0].argv == ["engine", "a b", "ü"]
    assert again.passes("cold", "c") == again.manifest
    assert again.passes("warm", "c") == again.passes("cold", "other") == []
    assert again.next_pass == 2
    assert again.runs == []


def test_records_are_read_back_as_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "b")
    text = "line one\nand\u2028two"
    journal.plan([planned(1)])
    journal.append(record(planned(1), reason=text, metrics={"prompt_tps": 12.5}))
    (run,) = Journal(tmp_path, "b").runs
    assert run.reason == text
    assert run.metrics == {"prompt_tps": 12.5}
    assert run.memory.peak_rss_bytes is None


def test_a_half_written_last_line_is_dropped_and_the_run_is_pending_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "b")
    journal.plan([planned(1), planned(2)])
    journal.append(record(planned(1)))
    whole = journal.runs_path.read_bytes()
    journal.runs_path.write_bytes(whole + whole[: len(whole) // 2])
    again = Journal(tmp_path, "b")
    assert [len(again.attempts(run)) for run in again.manifest] == [1, 0]
    again.append(record(planned(2)))
    assert [run.run for run in read_runs(again.runs_path)] == ["001.1.001", "001.1.002"]


def test_damage_inside_a_journal_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "b")
    journal.append(record(planned(1)))
    line = journal.runs_path.read_text()
    journal.runs_path.write_text(line + "{broken\n" + line)
    with pytest.raises(ColdbenchError, match=r"b\.jsonl:2: damaged line"):
        Journal(tmp_path, "b")
    journal.runs_path.write_text(line + "{}\n")
    with pytest.raises(ColdbenchError, match=r"b\.jsonl:2: not a run record"):
        Journal(tmp_path, "b")


def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "b")
    journal.append(record(planned(1)))
    journal.runs_path.rename(tmp_path / "kept.jsonl")
    journal.runs_path.symlink_to("/dev/full")
    with pytest.raises(ColdbenchError, match="cannot be recorded: No space left on device"):
        journal.append(record(planned(2)))
    assert len(journal.runs) == 1
