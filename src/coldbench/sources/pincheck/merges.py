"""Merging pins alone, in pairs and in order."""

from coldbench.sources.pincheck.case import Case, Checked
from coldbench.sources.pins import Merge, diffstat, merge_commits, totals


def merge_all(case: Case) -> None:
    """Find all conflicts, pins that change nothing, and the stack that merges."""
    base = case.base
    alone = {
        number: merge_commits(case.where, base, pin.commit) for number, pin in case.usable.items()
    }
    for number, merge in alone.items():
        if merge.commit is None:
            case.found(
                "conflict",
                (0, number),
                f"{case.called(number)} does not merge onto the base alone: {_files(merge)}; "
                "rebase it onto the base",
            )
        elif merge.commit != base and _same(case, merge.commit, base):
            case.found(
                "contained",
                (number,),
                f"{case.called(number)}: changes nothing, the base has its changes already "
                "(under other commits); take it out",
            )
    clashing = _pairs(case, alone)
    _in_order(case, alone, clashing)


def _pairs(case: Case, alone: dict[int, Merge]) -> set[tuple[int, int]]:
    clashing = set()
    numbers = [number for number, merge in alone.items() if merge.commit is not None]
    for place, one in enumerate(numbers):
        ours = alone[one].commit
        assert ours is not None
        for two in numbers[place + 1 :]:
            merge = merge_commits(case.where, ours, case.usable[two].commit)
            if merge.commit is None:
                clashing.add((one, two))
                case.found(
                    "conflict",
                    (one, two),
                    f"{case.called(two)} clashes with {case.called(one)}: {_files(merge)}; "
                    "rebase one onto the other, or take one out",
                )
            elif _repeats(case, alone, one, two, merge.commit):
                case.found(
                    "contained",
                    (two, one),
                    f"{case.called(two)}: changes nothing after {case.called(one)}, which has "
                    f"its changes under other commits; take out {case.called(two)}",
                )
    return clashing


def _repeats(case: Case, alone: dict[int, Merge], one: int, two: int, both: str) -> bool:
    """Tell whether pin two brings nothing new after pin one, without being in its past."""
    first, second = alone[one].commit, alone[two].commit
    assert first is not None
    assert second is not None
    if _same(case, second, case.base) or both == first:
        return False
    return _same(case, both, first)


def _same(case: Case, one: str, two: str) -> bool:
    return case.where.tree(one) == case.where.tree(two)


def _in_order(case: Case, alone: dict[int, Merge], clashing: set[tuple[int, int]]) -> None:
    """Merge pin after pin; one that does not merge is left out for those that follow."""
    head = case.base
    for number, pin in enumerate(case.pins, start=1):
        if number not in case.usable:
            case.result.pins.append(Checked(case.called(number), None, None, None, None))
            continue
        merge = merge_commits(case.where, head, pin.commit)
        changes = None
        if merge.commit is not None:
            before, after = case.where.tree(head), case.where.tree(merge.commit)
            changes = totals(diffstat(case.where, before, after))
            head = merge.commit
            if before != after:
                case.stack.append(number)
        elif alone[number].commit is not None and not any(
            (one, number) in clashing for one in case.stack
        ):
            case.found(
                "conflict",
                (number, *case.stack),
                f"{case.called(number)} merges onto the base and with each pin before it, but "
                f"not with all of them together: {_files(merge)}; rebase it onto the stack",
            )
        case.result.pins.append(
            Checked(
                case.called(number),
                case.count(pin.commit, case.base),
                alone[number].commit is not None,
                merge.commit is not None,
                changes,
            )
        )
    case.result.tree = case.where.tree(head)
    before = case.where.tree(case.base)
    case.result.changes = totals(diffstat(case.where, before, case.result.tree))


def _files(merge: Merge) -> str:
    return ", ".join(map(str, merge.conflicts))
