"""Where pins stand in their repositories, and what else they bring."""

from coldbench.common.errors import ColdbenchError
from coldbench.common.hashing import folder_key
from coldbench.sources.git import head_name, remote_refs
from coldbench.sources.pincheck.case import Case, Kind
from coldbench.sources.pins import heads
from coldbench.study.builds import Pin
from coldbench.study.gitnames import FULL_COMMIT


def repositories(case: Case) -> None:
    """Ask every repository for its refs, and fetch what the checks need."""
    users: dict[str, list[int]] = {case.place: []}
    for number, pin in enumerate(case.pins, start=1):
        users.setdefault(case.home(pin), []).append(number)
    for place, numbers in users.items():
        try:
            case.refs[place] = remote_refs(place)
            names = {name for number in numbers for name in heads(case.pins[number - 1])}
            case.where.fetch_refs(place, *sorted(names))
        except ColdbenchError as error:
            case.found("unavailable", numbers or (0,), f"{error}; its heads were not checked")
    for number, pin in enumerate(case.pins, start=1):
        try:
            case.where.want(case.home(pin), pin.commit, *heads(pin))
            case.usable[number] = pin
        except ColdbenchError as error:
            case.orphans.add(number)
            kind: Kind = "orphaned" if case.home(pin) in case.refs else "unavailable"
            case.found(kind, (number,), f"{case.called(number)}: {error}; pin another commit")


def moved_base(case: Case, ref: str | None) -> None:
    """Look where the ref of a base that is given by commit stands now."""
    if ref is None or FULL_COMMIT.fullmatch(ref) or case.place not in case.refs:
        return
    now = [case.refs[case.place].get(name) for name in head_name(ref)]
    commits = [commit for commit in now if commit is not None]
    if case.base not in commits:
        moved = f"names {commits[0]} now" if commits else "is gone"
        case.found("moved", (0,), f"the base: {ref} {moved}, not {case.base}")


def standing(case: Case) -> None:
    """Find pins whose head is elsewhere now, and those that no ref has."""
    for number, pin in case.usable.items():
        refs = case.refs.get(case.home(pin))
        if refs is None:
            continue
        _moved(case, number, pin, refs)
        branches = case.where.found_in(case.home(pin), pin.commit)
        if not branches and pin.commit not in refs.values():
            case.orphans.add(number)
            case.found(
                "orphaned",
                (number,),
                f"{case.called(number)}: no branch or tag of {case.home(pin)}"
                f"{' and not its pull request' if pin.pull else ''} has it: it can vanish "
                f"there{'' if pin.pull else ' (if a pull request has it, name that: pull)'}; "
                "pin a commit that is in one, or keep it in a repository of your own",
            )


def _moved(case: Case, number: int, pin: Pin, refs: dict[str, str]) -> None:
    names = heads(pin)
    if not names:
        return
    what = f"pull request {pin.pull}" if pin.pull else str(pin.ref)
    found = [refs[name] for name in names if name in refs]
    if not found:
        case.found("moved", (number,), f"{case.called(number)}: {what} is gone")
    elif pin.commit not in found:
        head = found[0]
        count = case.count(head, pin.commit)
        on = case.where.contains(head, pin.commit)
        how = f"moved on by {_commits(count)}" if on else "was pushed over: the pin is not in it"
        case.found(
            "moved",
            (number,),
            f"{case.called(number)}: {what} {how} and stands at {head}; look at what is new, "
            "then pin that",
        )


def contained(case: Case) -> None:
    """Find pins in the past of the base or of another pin."""
    for number, pin in case.usable.items():
        if case.where.contains(case.base, pin.commit):
            case.found(
                "contained", (number,), f"{case.called(number)}: the base has it; take it out"
            )
            continue
        for other, outer in case.usable.items():
            same = outer.commit == pin.commit
            if other == number or (same and other > number):
                continue
            if case.where.contains(outer.commit, pin.commit):
                case.found(
                    "contained",
                    (number, other),
                    f"{case.called(number)}: {case.called(other)} "
                    f"{'is the same commit' if same else 'has it in its past'}; take out "
                    f"{case.called(number)}",
                )


def diverged(case: Case) -> None:
    """Find pins that bring commits of another line of work, which the base does not have."""
    told: set[int] = set()
    for number, pin in case.usable.items():
        if number in case.orphans:  # its own branch no longer has it: all else looks foreign
            continue
        spoken = _dragged(case, pin)
        if spoken:
            told.add(number)
            case.found("diverged", (number,), f"{case.called(number)}: {spoken}")
    numbers = list(case.usable)
    for place, one in enumerate(numbers):
        for two in numbers[place + 1 :]:
            if {one, two} <= told:
                continue
            first, second = case.usable[one].commit, case.usable[two].commit
            common = case.where.read("merge-base", first, second)
            if not common or common in {first, second}:
                continue
            if not case.where.contains(case.base, common):
                count = case.count(common, case.base)
                case.found(
                    "diverged",
                    (one, two),
                    f"{case.called(one)} and {case.called(two)}: both bring {_commits(count)} up "
                    f"to {common[:12]} that are not in the base; rebase them onto the base",
                )


def _dragged(case: Case, pin: Pin) -> str | None:
    """Return what a pin brings of branches and tags that do not have it."""
    inside = [
        f"refs/from/{folder_key(place)}/{kind}"
        for place in {case.place, case.home(pin)}
        for kind in ("heads", "tags")
    ]
    own = {
        f"refs/from/{folder_key(case.home(pin))}/{name.removeprefix('refs/')}"
        for name in heads(pin)
    }
    shown = case.where.read(
        "for-each-ref", "--no-contains", pin.commit, "--format=%(refname)", *inside
    )
    others = [name for name in shown.splitlines() if name not in own]
    given = "\n".join([pin.commit, f"^{case.base}"])
    brought = _listed(case, given)
    kept = _listed(case, "\n".join([given, *(f"^{name}" for name in others)]))
    alien = [commit for commit in brought if commit not in set(kept)]
    if not alien:
        return None
    shown = case.where.read("for-each-ref", "--contains", alien[0], "--format=%(refname)", *inside)
    line = next(name for name in shown.splitlines() if name in others)
    fork = case.where.read("merge-base", case.base, alien[0])
    return (
        f"{len(alien)} of the {len(brought)} commits that it brings are not its own but of "
        f"{line.split('/', 3)[3]} (the newest {alien[0][:12]}), which left the base at "
        f"{fork[:12] or 'no common commit'}; rebase it onto the base, or take a base that has "
        "them"
    )


def _commits(count: int) -> str:
    return "1 commit" if count == 1 else f"{count} commits"


def _listed(case: Case, given: str) -> list[str]:
    shown = case.where.git("rev-list", "--topo-order", "--stdin", given=f"{given}\n".encode())
    return shown.decode().split()
