"""What the parts of a preflight share: the stack, what was found so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from coldbench.sources.git import Store, location
from coldbench.sources.pins import label
from coldbench.study.builds import Pin

Kind = Literal[
    "conflict", "contained", "diverged", "moved", "orphaned", "unavailable", "does not compile"
]
KINDS: dict[Kind, str] = {
    "conflict": "does not merge",
    "contained": "is in another pin or in the base already",
    "diverged": "drags in commits of another line of work",
    "moved": "the head of its pull request or branch is another commit now",
    "orphaned": "no branch, tag or pull request has it any more",
    "unavailable": "could not be checked",
    "does not compile": "merges cleanly but does not compile",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is rotten: of which pins (numbers from 1; 0 is the base), and the mend."""

    kind: Kind
    pins: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Checked:
    """One pin: how many of its commits the base lacks, and how it merges.

    `alone`: onto the base; `stacked`: onto the base and the pins before it that merge, with what
    it changes there. All None where the pin could not be had, `changes` where it does not merge.
    """

    label: str
    commits: int | None
    alone: bool | None
    stacked: bool | None
    changes: dict[str, int] | None


@dataclass
class Preflight:
    """The preflight of one build; it is clean where nothing was found.

    `tree` and `changes` (files, insertions, deletions) are of the pins that merge.
    """

    build: str
    base: str
    pins: list[Checked] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tree: str = ""
    changes: dict[str, int] = field(default_factory=dict)


@dataclass
class Case:
    """One stack under examination, in an opened store.

    `refs` are those of each repository that could be asked, `usable` the pins (by number) whose
    commits are here, `orphans` those that no ref has, `stack` those that merge in order.
    """

    where: Store
    place: str
    base: str
    pins: tuple[Pin, ...]
    result: Preflight
    refs: dict[str, dict[str, str]] = field(default_factory=dict)
    usable: dict[int, Pin] = field(default_factory=dict)
    orphans: set[int] = field(default_factory=set)
    stack: list[int] = field(default_factory=list)

    def found(self, kind: Kind, numbers: Sequence[int], text: str) -> None:
        """Note a finding on the pins `numbers` (0 is the base)."""
        self.result.findings.append(Finding(kind, tuple(numbers), text))

    def called(self, number: int) -> str:
        """Return how messages call a pin."""
        return label(number, self.pins[number - 1])

    def home(self, pin: Pin) -> str:
        """Return the repository that has a pin."""
        return location(pin.url) if pin.url else self.place

    def count(self, commit: str, without: str) -> int:
        """Return how many commits up to `commit` are not in the past of `without`."""
        return int(self.where.read("rev-list", "--count", commit, "--not", without) or 0)
