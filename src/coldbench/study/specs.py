"""What a plan hands to jobs: immutable specs.

They carry no labels, titles or comments but for Presentation: editing those reruns nothing.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from coldbench.study.scalars import Environment
from coldbench.study.schema import Completion, State, Workload
from coldbench.study.treatment import Expected, Intent


class Spec(BaseModel):
    """A part of the plan: immutable, and the same JSON text exactly when it means the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(Spec):
    """One treatment. `twin_of` names the arm that this one repeats for the A/A pair."""

    name: str
    build: str
    args: tuple[str, ...] = ()
    intent: Intent = Intent()
    expect: Expected = Expected()
    environment: Environment = {}
    budget: int | None = None
    levels: dict[str, str] = {}
    twin_of: str | None = None


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
    """The identity check of a model: greedy text of every arm, a repeat, a mutated prompt."""

    study: str
    model: str
    workload: str
    driven: Completion
    mutant: str
    arms: tuple[Arm, ...]
    group_by: tuple[str, ...]


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


class Presentation(Spec):
    """What tables need beside the figures: labels in the file's order, claims, A/A pairs."""

    study: str
    title: str
    models: dict[str, str]
    workloads: dict[str, str]
    arms: dict[str, str]
    claims: tuple[Claim, ...]
    aa_pairs: tuple[tuple[str, str], ...]
    group_by: tuple[str, ...]
    units: dict[str, str]
