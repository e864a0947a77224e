"""Whether all arms of a group gave the same text, judged so that the check itself can fail.

An engine whose greedy text is not the same each time (it chooses kernels by their speed) is judged
by a rate: how often an arm gives the commonest text of the group's first arm, against how often
that arm itself does.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import fisher_exact

from coldbench.drivers.bits import bit_settings, differing
from coldbench.records import Run

LEVEL = 0.01
"""Of Fisher's exact test (one-sided), an arm at a time: arms are many, and one that fails loses
its figures. Five runs against five tell never from always at this level (p = 1/252).
"""


@dataclass(frozen=True)
class Rate:
    """In how many of an arm's runs the text was the commonest one of the control: its first arm."""

    equal: int
    runs: int
    control: str
    control_equal: int
    control_runs: int

    @property
    def p(self) -> float:
        """Return the probability of so few, were the arm like the control."""
        table = [
            [self.equal, self.runs - self.equal],
            [self.control_equal, self.control_runs - self.control_equal],
        ]
        return float(fisher_exact(np.array(table), alternative="less").pvalue)

    @property
    def words(self) -> str:
        """Return what was found in words."""
        return (
            f"in {self.equal} of {self.runs} runs, against {self.control_equal} of "
            f"{self.control_runs} of {self.control} (p = {self.p:.2g})"
        )


@dataclass(frozen=True)
class IdentityCell:
    """The outcome of the identity check for one (model, arm).

    `md5` is the hex digest of the greedy text, None where there was none; `reason` says in one
    line why `ok` is False. `rate` is there where the text is not the same each time; `md5` is then
    that of the control's commonest text.
    """

    md5: str | None
    ok: bool
    reason: str = ""
    rate: Rate | None = None


@dataclass(frozen=True)
class IdentityRun:
    """One run of the check, `run` its last attempt.

    `variant` is empty, `repeat`, `mutant`, or `text N` where an arm's texts are counted.
    """

    model: str
    arm: str
    group: tuple[str, ...]
    variant: str
    run: Run | None


def judge(
    runs: Iterable[IdentityRun], measured: Iterable[Run] = ()
) -> dict[tuple[str, str], IdentityCell]:
    """Return the outcome for every (model, arm).

    An arm whose own run failed fails alone. Where texts of a group differ, its repeat differs or
    its mutated prompt gives the same text, nothing is known about any arm of it: all fail.
    `measured` are measured runs of the same workload: an arm fails whose digest there is another,
    or, where texts are counted, is the control's too rarely.
    """
    groups: defaultdict[tuple[str, tuple[str, ...]], list[IdentityRun]] = defaultdict(list)
    for run in runs:
        groups[run.model, run.group].append(run)
    outcome: dict[tuple[str, str], IdentityCell] = {}
    for (model, _), members in groups.items():
        counted = any(run.variant.startswith("text ") for run in members)
        cells = _counted(members) if counted else _group(members)
        outcome |= {(model, arm): cell for arm, cell in cells.items()}
    by_arm: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for one in measured:
        if one.status == "ok" and (one.model, one.arm) in outcome:
            by_arm[one.model, one.arm].append(one)
    for key, runs_of_arm in by_arm.items():
        if outcome[key].ok and (reason := _measured_fault(outcome[key], runs_of_arm)):
            outcome[key] = replace(outcome[key], ok=False, reason=reason)
    return outcome


def _measured_fault(cell: IdentityCell, runs: Sequence[Run]) -> str:
    others = [run for run in runs if run.digest != cell.md5]
    if not others:
        return ""
    if cell.rate is None:
        last = others[-1]
        return f"run {last.run} ({last.state}) gave another text: {str(last.digest)[:8]}"
    rate = replace(cell.rate, equal=len(runs) - len(others), runs=len(runs))
    return f"measured runs gave the text {rate.words}" if rate.p <= LEVEL else ""


def _counted(members: list[IdentityRun]) -> Mapping[str, IdentityCell]:
    """Judge arms by how often they gave the text that the first of them gave most often."""
    by_arm: defaultdict[str, list[Run | None]] = defaultdict(list)
    for each in members:
        if each.variant != "mutant":
            by_arm[each.arm].append(each.run)
    cells: dict[str, IdentityCell] = {}
    texts: dict[str, list[str]] = {}
    for arm, runs in by_arm.items():
        if reason := _spoilt(runs):
            cells[arm] = IdentityCell(None, False, reason)
        else:
            texts[arm] = [str(run.digest) for run in runs if run is not None]
    if not texts:
        return cells
    control, own = next(iter(texts.items()))
    (common, equal), *_ = Counter(own).most_common(1)
    never = Rate(0, len(own), control, equal, len(own))
    fault = _mutant_fault(members, {text for given in texts.values() for text in given})
    if not fault and never.p > LEVEL:
        fault = (
            f"the check is void: {control} gave its commonest text in {equal} of {len(own)} runs, "
            "too rarely to tell other arms from it; raise repeats"
        )
    for arm, given in texts.items():
        rate = replace(never, equal=given.count(common), runs=len(given))
        reason = fault or (f"gave the text {rate.words}" if rate.p <= LEVEL else "")
        cells[arm] = IdentityCell(common, not reason, reason, rate)
    return cells


def _spoilt(runs: Sequence[Run | None]) -> str:
    """Return why an arm's runs are not all ones that count, empty where they are."""
    for run in runs:
        if run is None:
            return "one of its identity runs is missing"
        if run.status != "ok":
            return f"one of its identity runs {run.status}: {run.reason}"
    return ""


def _mutant_fault(members: list[IdentityRun], texts: set[str]) -> str:
    mutant = next((run.run for run in members if run.variant == "mutant"), None)
    if mutant is None:
        return "the check is void: its mutant is missing"
    if mutant.status != "ok":
        return f"the check is void: its mutant {mutant.status}: {mutant.reason}"
    if str(mutant.digest) in texts:
        return "the check is void: a mutated prompt gave the same text"
    return ""


def _group(members: list[IdentityRun]) -> Mapping[str, IdentityCell]:
    texts = {run.arm: run.run for run in members if not run.variant}
    controls = {run.variant: run for run in members if run.variant}
    digests = {arm: run.digest for arm, run in texts.items() if run and run.status == "ok"}
    common = _fault(digests, controls)
    if len(set(digests.values())) > 1:
        common += _unequal({arm: run for arm, run in texts.items() if run and arm in digests})
    cells = {}
    for arm, run in texts.items():
        if run is None:
            cells[arm] = IdentityCell(None, False, "its identity run is missing")
        elif run.status != "ok":
            cells[arm] = IdentityCell(None, False, f"its identity run {run.status}: {run.reason}")
        else:
            cells[arm] = IdentityCell(run.digest, not common, common)
    return cells


def _unequal(runs: Mapping[str, Run]) -> str:
    """Return in words which settings that may change bits the runs did not share."""
    settings = {arm: bit_settings(run.argv[1:], run.environment) for arm, run in runs.items()}
    found = [f"{flag} ({words})" for flag, words in differing(settings).items()]
    return f"; not held equal: {', '.join(found)}" if found else ""


def _fault(digests: Mapping[str, str | None], controls: Mapping[str, IdentityRun]) -> str:
    by_digest: defaultdict[str, list[str]] = defaultdict(list)
    for arm, digest in digests.items():
        by_digest[str(digest)].append(arm)
    if len(by_digest) > 1:
        sides = "; ".join(
            f"{digest[:8]} of {', '.join(arms)}" for digest, arms in by_digest.items()
        )
        return f"texts differ: {sides}"
    for variant in ("repeat", "mutant"):
        control = controls.get(variant)
        if control is None or control.run is None:
            return f"the check is void: its {variant} is missing"
        if control.run.status != "ok":
            return f"the check is void: its {variant} {control.run.status}: {control.run.reason}"
        first = digests.get(control.arm)
        if first is None:
            continue  # that arm's own failure is told with the arm
        if variant == "repeat" and control.run.digest != first:
            return f"the check is void: {control.arm} gave two texts for one prompt"
        if variant == "mutant" and control.run.digest == first:
            return "the check is void: a mutated prompt gave the same text"
    return ""
