"""What a reader must know about a model's rows that no figure shows."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from coldbench.analysis.wording import pattern, ranged
from coldbench.drivers.flags import OBSERVABLE_FLAGS
from coldbench.records import Run


def notes(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Return the notes on each model: those of its runs, and treatments that came to the same.

    Notes that differ in quantities alone are one, with the range of each.

    The engine's log shows which settings were in force. Two arms that differ only in flags it
    shows, and in force not at all, measured the same thing twice; equal arms on two builds whose
    settings in force differ compare more than the builds.
    """
    by_model: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_model[run.model].append(run)
    return {model: [*_of_runs(found), *_of_arms(found)] for model, found in by_model.items()}


def _of_runs(runs: Sequence[Run]) -> list[str]:
    said: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for run in runs:
        for note in run.notes:
            said[pattern(note)].append((run.arm, note))
    return [
        f"{', '.join(dict.fromkeys(arm for arm, _ in told))}: {ranged([note for _, note in told])}"
        for told in said.values()
    ]


def _of_arms(runs: Sequence[Run]) -> list[str]:
    first: dict[tuple[str, str], Run] = {}
    for run in runs:
        if run.status == "ok" and run.effective:
            first.setdefault((run.workload, run.arm), run)
    found = dict.fromkeys(
        note for one, other in combinations(first.values(), 2) for note in _of_two(one, other)
    )
    return list(found)


def _of_two(one: Run, other: Run) -> list[str]:
    if one.workload != other.workload:
        return []
    flags, others = _flags(one.argv), _flags(other.argv)
    differing = {flag for flag in flags | others if flags.get(flag) != others.get(flag)}
    in_force = _differences(one.effective, other.effective)
    if one.build == other.build:
        if differing and differing <= OBSERVABLE_FLAGS and not in_force:
            asked = ", ".join(sorted(differing))
            return [f"{one.arm} and {other.arm} differ in {asked} but ran with the same settings"]
    elif not differing and in_force:
        return [
            f"{one.arm} and {other.arm} have equal arguments, but their builds ran with other "
            f"settings: {', '.join(in_force)}"
        ]
    return []


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [
        f"{name} {_words(one.get(name, 'n/a'))} against {_words(other.get(name, 'n/a'))}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return str(value)


def _flags(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the words after each flag of a command line, without program and values' meaning."""
    flags: dict[str, list[str]] = {}
    words: list[str] = []
    for word in argv[1:]:
        if word.startswith("-"):
            words = flags.setdefault(word, [])
        else:
            words.append(word)
    return flags
