"""The preflight of a stack of pins: all that is wrong with it, not only the first thing."""

from collections.abc import Sequence
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.sources.builds import prepare_build
from coldbench.sources.git import location, resolve, store
from coldbench.sources.pincheck import lines, merges
from coldbench.sources.pincheck.case import KINDS, Case, Checked, Finding, Preflight
from coldbench.sources.pins import locked
from coldbench.study.builds import Build, GitSource, Pin
from coldbench.study.lock import Pins as LockEntry
from coldbench.study.plan import Plan

__all__ = ["KINDS", "Checked", "Finding", "Preflight", "check_pins", "check_study_pins"]


def check_study_pins(study: Plan, cache: Path, *, compiling: bool = False) -> list[Preflight]:
    """Return the preflight of every build of a study that has pins.

    A base is the commit that the study's lock file has, if it has one; nothing is written there.
    Raises ColdbenchError as check_pins.
    """
    found = []
    for name, build in study.builds.items():
        if build.pins:
            fixed = locked(name, build, LockEntry(study.path, "builds", name), cache, write=False)
            found.append(check_pins(name, fixed, cache, compiling=compiling))
    return found


def check_pins(name: str, build: Build, cache: Path, *, compiling: bool = False) -> Preflight:
    """Look at every pin of a build of a git source, alone, in pairs and in the stack.

    With `compiling`, what merges is built as well. Asks the repositories where their heads stand.
    Raises ColdbenchError where the base itself cannot be had.
    """
    assert isinstance(build.source, GitSource)
    source, pins = build.source.git, tuple(build.pins or ())
    try:
        base = source.commit or resolve(source.url, source.ref, cache)
        place = location(source.url)
        with store(cache, place, "history") as where:
            where.want(place, base)
            case = Case(where, place, base, pins, Preflight(name, base))
            lines.repositories(case)
            lines.moved_base(case, source.ref if source.commit else None)
            lines.standing(case)
            lines.contained(case)
            lines.diverged(case)
            merges.merge_all(case)
    except ColdbenchError as error:
        raise ColdbenchError(f"build {name}: {error}") from None
    if compiling:
        _compile(case, build, cache)
    found = case.result
    found.findings.sort(key=lambda one: (min(one.pins), list(KINDS).index(one.kind)))
    return found


def _compile(case: Case, build: Build, cache: Path) -> None:
    """Build what merges; where that fails, find each pin that breaks it."""

    def fault(numbers: Sequence[int]) -> str | None:
        pins = tuple(case.pins[number - 1] for number in numbers)
        try:
            prepare_build(f"{case.result.build} (pins {list(numbers)})", trial(pins), cache)
        except ColdbenchError as error:
            return str(error).partition(": ")[2]
        return None

    def trial(pins: tuple[Pin, ...]) -> Build:
        assert isinstance(build.source, GitSource)
        fixed = build.source.git.model_copy(update={"commit": case.base})
        source = build.source.model_copy(update={"git": fixed})
        return build.model_copy(update={"source": source, "pins": pins})

    if fault(case.stack) is None:
        return
    if reason := fault(()):
        case.found("does not compile", (0,), f"the base does not compile without pins: {reason}")
        return
    good: list[int] = []
    for number in case.stack:
        reason = fault([*good, number])
        if reason is None:
            good.append(number)
        elif fault([number]) is None:
            partners = [one for one in good if fault([one, number]) is not None] or good
            names = " and ".join(case.called(one) for one in partners)
            text = f"{case.called(number)} compiles on the base, but not together with {names}"
            case.found("does not compile", (number, *partners), f"{text}: {reason}")
        else:
            case.found(
                "does not compile",
                (number,),
                f"{case.called(number)} merges cleanly onto the base but does not compile: "
                f"{reason}",
            )
