"""What a plan hands to jobs: immutable specs.

They carry no labels, titles or comments but for Presentation: editing those reruns nothing.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded
from coldbench.study.scalars import LEAST_BUDGET_BYTES, Environment
from coldbench.study.schema import State
from coldbench.study.treatment import Expected, Host, Intent
from coldbench.study.workloads import TextTokens, Trace, Workload


class Spec(BaseModel):
    """A part of the plan: immutable, and the same JSON text exactly when it means the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(Spec):
    """One treatment. `twin_of` names the arm that this one repeats for the A/A pair.

    `budget` is in bytes (int) or a share of the model's bytes (float).
    """

    name: str
    build: str
    args: tuple[str, ...] = ()
    intent: Intent = Intent()
    expect: Expected = Expected()
    environment: Environment = {}
    host: Host = Host()
    budget: int | float | None = None
    levels: dict[str, str] = {}
    twin_of: str | None = None

    @property
    def budget_bytes(self) -> int | None:
        """Return the budget of an arm that has its model."""
        assert not isinstance(self.budget, float)
        return self.budget

    @property
    def treatment(self) -> str:
        """Return all that decides what a run does: arms of the same text do the same."""
        return self.model_dump_json(exclude={"name", "levels", "expect", "twin_of"})

    def with_model(self, size: int) -> "Arm":
        """Return the arm for a model of `size` bytes: its budget is then in bytes.

        Raises ColdbenchError where that is too little for any program.
        """
        if not isinstance(self.budget, float):
            return self
        budget = round(self.budget * size)
        if budget < LEAST_BUDGET_BYTES:
            raise ColdbenchError(
                f"arm {self.name}: its budget, {self.budget:.3%} of a model of {size:,} bytes, is "
                f"less than {LEAST_BUDGET_BYTES >> 20} MiB; give it more"
            )
        return self.model_copy(update={"budget": budget})


def alike(arms: Sequence[Arm]) -> tuple[Arm, Arm] | None:
    """Return two arms that do the same and are no A/A pair, or None; with budgets as they stand."""
    first: dict[str, Arm] = {}
    for arm in arms:
        if arm.twin_of is None and (other := first.setdefault(arm.treatment, arm)) is not arm:
            return other, arm
    return None


class BlockSpec(Spec):
    """One block: every arm of a (model, workload) once in each of `states`."""

    study: str
    model: str
    workload: str
    driven: Workload
    arms: tuple[Arm, ...]
    block: int
    states: tuple[State, ...]
    seed: int


class IdentitySpec(Spec):
    """The identity check of a model: every arm and a repeat of `driven`, and `mutant` once.

    With `repeats`, every arm so often instead.
    """

    study: str
    model: str
    workload: str
    driven: Workload
    mutant: Workload
    arms: tuple[Arm, ...]
    group_by: tuple[str, ...]
    repeats: int | None = None


class FeedSpec(Spec):
    """What a kernel is fed beside the model: rows by a trace, or else the layers of the model."""

    trace: Trace | None = None

    @property
    def files(self) -> list[str]:
        """Return the user's files that it is computed from."""
        named = (getattr(self.trace, key, None) for key in ("text", "recorded"))
        return [str(expanded(path)) for path in named if path is not None]

    @property
    def builds(self) -> list[str]:
        """Return the builds that it needs."""
        return [self.trace.tokenizer] if isinstance(self.trace, TextTokens) else []


class Claim(Spec):
    """One declared comparison on one model, workload, cache state and metric."""

    name: str
    model: str
    workload: str
    state: State
    metric: str
    treatment: str
    control: str
    margin: float
    better: Literal["higher", "lower"] | None


class UntilSpec(Spec):
    """Blocks to add from `first` on, until every claim's interval is narrow or `last` is measured.

    `half_width` is relative (0.03 = 3%); `first` is the spec of the first block that may be added.
    """

    first: BlockSpec
    claims: tuple[Claim, ...]
    half_width: float
    last: int


class PivotTile(Spec):
    """What stands in one place of a pivot."""

    model: str
    workload: str
    arm: str

    @property
    def words(self) -> tuple[str, str, str]:
        """Return its names."""
        return self.model, self.workload, self.arm


class PivotSpec(Spec):
    """A pivot, laid out: `tiles` by row and column, None where the study has no such arm.

    `rows` and `columns` are the levels of `row_axes` and `column_axes`.
    """

    name: str
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    where: dict[str, str]
    metrics: tuple[str, ...]
    states: tuple[State, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[tuple[str, ...], ...]
    tiles: tuple[tuple[PivotTile | None, ...], ...]


class PublishedTable(Spec):
    """Figures that somebody else published: rows of heading -> text."""

    source: str
    rows: tuple[dict[str, str], ...]


class Presentation(Spec):
    """What tables need beside the figures: labels in the file's order, claims, pivots, twins."""

    study: str
    title: str
    models: dict[str, str]
    workloads: dict[str, str]
    arms: dict[str, str]
    claims: tuple[Claim, ...]
    aa_pairs: tuple[tuple[str, str], ...]
    group_by: tuple[str, ...]
    units: dict[str, str]
    pivots: tuple[PivotSpec, ...] = ()
    published: tuple[PublishedTable, ...] = ()
