"""Measured runs of a compared workload are held to the text of the identity check."""

from typing import Any

import pytest

from coldbench.analysis.identity import IdentityCell, judge
from coldbench.records import Run

from .fabricated_runs import fabricated_run
from .test_identity import check, controls


def measured(arm: str, digest: str | None, block: int = 1, **fields: Any) -> Run:
    return fabricated_run(arm, block, model=fields.pop("model", "model"), digest=digest, **fields)


SOUND = [check("a", "x"), check("b", "x"), *controls("a", "x", "y")]


def reasons(*runs: Run) -> dict[str, str]:
    return {arm: cell.reason for (_, arm), cell in judge(SOUND, runs).items()}


def test_runs_with_the_checked_text_change_nothing() -> None:
    cells = judge(SOUND, [measured("a", "x"), measured("b", "x"), measured("b", "x", 2)])
    assert cells == judge(SOUND) == {("model", arm): IdentityCell("x", True) for arm in "ab"}


@pytest.mark.parametrize("digest", ["0123456789abcdef", None])
@pytest.mark.parametrize("order", [1, -1])
def test_one_run_with_another_text_fails_its_arm_alone(digest: str | None, order: int) -> None:
    runs = [measured("b", "x"), measured("b", digest, 2, state="warm"), measured("a", "x")]
    found = reasons(*runs[::order])
    assert found["a"] == ""
    assert found["b"] == f"run {runs[1].run} (warm) gave another text: {str(digest)[:8]}"
    cell = judge(SOUND, runs)["model", "b"]
    assert (cell.ok, cell.md5) == (False, "x")


def test_only_runs_that_give_figures_of_arms_that_were_checked_are_held() -> None:
    assert reasons(
        measured("a", "z", status="failed", reason="exit status 1"),
        measured("a", None, 2, status="refused", reason="no fio"),
        measured("device", None),  # an arm that the check leaves out
        measured("a", "z", model="other"),
    ) == {"a": "", "b": ""}


def test_what_the_check_itself_found_is_told_first() -> None:
    void = [check("a", "x"), check("b", "x"), *controls("a", "x", "x")]
    cells = judge(void, [measured("a", "z")])
    assert {cell.reason for cell in cells.values()} == {
        "the check is void: a mutated prompt gave the same text"
    }


def test_a_run_is_held_to_the_text_of_its_own_group() -> None:
    runs = [
        check("a", "x", group="on"),
        *controls("a", "x", "m", "on"),
        check("b", "z", group="off"),
        *controls("b", "z", "m", "off"),
    ]
    cells = judge(runs, [measured("a", "x"), measured("b", "z")])
    assert all(cell.ok for cell in cells.values())
    crossed = judge(runs, [measured("a", "z"), measured("b", "z")])
    assert [cell.ok for cell in crossed.values()] == [False, True]
