"""Treatments that came to the same, and builds that ran with other settings, are named."""

from typing import Any

from coldbench.analysis.notes import notes
from coldbench.records import Run

from .fabricated_runs import fabricated_run


def run(arm: str, build: str, *args: str, **effective: Any) -> Run:
    return fabricated_run(
        arm, 0, build=build, argv=[f"/{build}/bench", "-m", "m", *args], effective=effective
    )


def of(*runs: Run) -> list[str]:
    return [note for found in notes(runs).values() for note in found]


def test_arms_that_ran_with_the_same_settings_are_named() -> None:
    (note,) = of(
        run("auto", "new", "--lazy-mode", "auto", lazy="off", load_mode="mmap"),
        run("off", "new", "--lazy-mode", "off", lazy="off", load_mode="mmap"),
    )
    assert note == "auto and off differ in --lazy-mode but ran with the same settings"


def test_arms_that_differ_in_force_or_in_other_flags_are_not() -> None:
    assert not of(
        run("on", "new", "--lazy-mode", "on", lazy=["table"]),
        run("off", "new", "--lazy-mode", "off", lazy="off"),
        run("wide", "new", "--lazy-mode", "off", "-ub", "64", lazy="off"),
    )


def test_equal_arguments_on_builds_with_other_defaults_are_named() -> None:
    (note,) = of(run("old", "old", load_mode="mmap"), run("new", "new", load_mode="none"))
    assert "load_mode mmap against none" in note


def test_notes_of_runs_are_told_once_with_their_arms() -> None:
    one = fabricated_run("a", 0, notes=["mlock not in effect"])
    two = fabricated_run("b", 0, notes=["mlock not in effect"])
    assert of(one, one, two) == ["a, b: mlock not in effect"]
