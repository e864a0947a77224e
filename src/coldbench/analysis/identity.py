"""Whether all arms of a group gave the same text, judged so that the check itself can fail."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coldbench.records import Run


@dataclass(frozen=True)
class IdentityCell:
    """The outcome of the identity check for one (model, arm).

    `md5` is the hex digest of the greedy text, None where there was none; `reason` says in one
    line why `ok` is False.
    """

    md5: str | None
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class IdentityRun:
    """One run of the check: `variant` is empty, `repeat` or `mutant`; `run` its last attempt."""

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
    `measured` are measured runs of the same workload: an arm fails whose digest there is another.
    """
    groups: defaultdict[tuple[str, tuple[str, ...]], list[IdentityRun]] = defaultdict(list)
    for run in runs:
        groups[run.model, run.group].append(run)
    outcome: dict[tuple[str, str], IdentityCell] = {}
    for (model, _), members in groups.items():
        outcome |= {(model, arm): cell for arm, cell in _group(members).items()}
    for one in measured:
        cell = outcome.get((one.model, one.arm))
        if cell is None or not cell.ok or one.status != "ok" or one.digest == cell.md5:
            continue
        reason = f"run {one.run} ({one.state}) gave another text: {str(one.digest)[:8]}"
        outcome[one.model, one.arm] = replace(cell, ok=False, reason=reason)
    return outcome


def _group(members: list[IdentityRun]) -> Mapping[str, IdentityCell]:
    texts = {run.arm: run.run for run in members if not run.variant}
    controls = {run.variant: run for run in members if run.variant}
    digests = {arm: run.digest for arm, run in texts.items() if run and run.status == "ok"}
    common = _fault(digests, controls)
    cells = {}
    for arm, run in texts.items():
        if run is None:
            cells[arm] = IdentityCell(None, False, "its identity run is missing")
        elif run.status != "ok":
            cells[arm] = IdentityCell(None, False, f"its identity run {run.status}: {run.reason}")
        else:
            cells[arm] = IdentityCell(run.digest, not common, common)
    return cells


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
