"""What a study file may say: each class is one mapping of the YAML, unknown keys are errors.

Scalars arrive here as the text that was written (see `reading`), so `off`, `0123456` and `1e3`
stay what they are wherever text is wanted. `config/README.md` documents the keys for users;
`config/study.schema.json` is generated from these classes for editors.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from coldbench.study.builds import Build
from coldbench.study.models import Model
from coldbench.study.scalars import (
    Arguments,
    Budget,
    Environment,
    Name,
    Names,
    Percent,
    Text,
    listed,
)
from coldbench.study.section import Section
from coldbench.study.sweeps import ALL, SECTIONS
from coldbench.study.treatment import Expect, Expected, Host, Intent
from coldbench.study.workloads import Workload

State = Literal["cold", "warm"]
States = Annotated[
    tuple[State, ...],
    Field(min_length=1),
    BeforeValidator(listed, json_schema_input_type=State | tuple[State, ...]),
]
STATES: tuple[State, ...] = ("cold", "warm")


# --- arms ---------------------------------------------------------------------------------------


class Level(Section):
    """What one level of a factor adds to an arm; `for_build` replaces `args` and `intent` there."""

    args: Arguments = ()
    intent: Intent = Intent()
    expect: Expect = Expect()
    environment: Environment = Field(default_factory=dict)
    host: Host = Host()
    for_build: dict[Name, Arguments] = Field(default_factory=dict)
    budget: Budget | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"args": value} if isinstance(value, list | tuple) else value


class ListedArm(Section):
    """An arm written out, or with `aa_of` the twin of another arm: the A/A pair.

    `levels` say where it stands among the arms of the matrix, for pivots and groups.
    """

    name: Name
    label: str | None = None
    build: Name | None = None
    args: Arguments = ()
    intent: Intent = Intent()
    expect: Expected = Expected()
    environment: Environment = Field(default_factory=dict)
    host: Host = Host()
    budget: Budget | None = None
    levels: dict[Name, Name] = Field(default_factory=dict)
    aa_of: Name | None = None

    @model_validator(mode="after")
    def _twin_or_arm(self) -> "ListedArm":
        if self.aa_of is not None:
            if self.model_fields_set - {"name", "label", "aa_of"}:
                raise ValueError("an arm with aa_of repeats that arm and takes no other setting")
        elif self.build is None:
            raise ValueError("an arm needs a build (or aa_of)")
        return self


class Arms(Section):
    """The treatments: every combination of `matrix` less `exclude`, and those in `include`."""

    matrix: dict[Name, Names] = Field(default_factory=dict)
    exclude: tuple[dict[Name, Name], ...] = ()
    include: tuple[ListedArm, ...] = ()
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"include": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _build_is_a_factor(self) -> "Arms":
        if self.matrix and "build" not in self.matrix:
            raise ValueError("the matrix needs the factor build")
        if not self.matrix and not self.include:
            raise ValueError("a study needs at least one arm")
        return self


# --- the rest -----------------------------------------------------------------------------------


class Until(Section):
    """When to stop adding blocks: every interval within `half_width`, or `max` blocks measured."""

    half_width: Percent
    max: int = Field(gt=0, le=999)


class Blocks(Section):
    """How many blocks are measured in each cache state, and until when more are added."""

    cold: int = Field(default=0, ge=0, le=999)
    warm: int = Field(default=0, ge=0, le=999)
    until: Until | None = None

    @model_validator(mode="after")
    def _something(self) -> "Blocks":
        if self.cold == 0 and self.warm == 0:
            raise ValueError("a study needs at least one cold or warm block")
        if self.until is not None and self.until.max <= max(self.cold, self.warm):
            raise ValueError("until.max must exceed the blocks that are measured anyway")
        return self


class Comparison(Section):
    """A declared claim: `treatment` against `control` on `metrics` in `states`.

    `margin` is how large a difference may be and still count as equivalent; `better` is the
    direction for metrics whose direction no driver knows.
    """

    treatment: Name
    control: Name
    metrics: Names = ("prompt_tps",)
    states: States = STATES
    margin: Percent = 0.03
    better: Literal["higher", "lower"] | None = None


LEAST_REPEATS = 5
"""With fewer, not even an arm that never gives the text could be told from one that always does."""


class Identity(Section):
    """The identity check: greedy text, logits or a kernel's checksum over all arms.

    A repeat must agree and a mutant differ: `mutant` is its prompt, a kernel mutates itself. Arms
    that share their levels of `group_by` must agree; by default all arms of a model must. Those in
    `without` compute nothing. An engine whose text is not the same each time takes `repeats`: every
    arm computes so often, and how often it gives the first arm's commonest text is compared.
    """

    workload: Name
    mutant: Annotated[str, Field(min_length=1)] | None = None
    group_by: tuple[Name, ...] = ()
    without: Annotated[
        tuple[Name, ...], BeforeValidator(listed, json_schema_input_type=Name | tuple[Name, ...])
    ] = ()
    repeats: int | None = Field(default=None, ge=LEAST_REPEATS, le=999)


class Pivot(Section):
    """A table of arms in rows and columns by their levels of factors, model and workload included.

    Only arms at the levels of `where` are in it; `metrics` and `states` make one table each.
    """

    rows: Names
    columns: Names
    where: dict[Name, Name] = Field(default_factory=dict)
    metrics: Names
    states: States = STATES


class Published(Section):
    """Figures that somebody published, shown beside ours in their own words and units.

    `source` says whose and where; each row maps column headings to what stands there.
    """

    source: Text
    rows: tuple[dict[str, Text], ...] = Field(min_length=1)


class Scale(Section):
    """What a study says at one of its scales: see `scales`."""

    models: dict[Name, Model] = Field(default_factory=dict)
    builds: dict[Name, Build] = Field(default_factory=dict)
    workloads: dict[Name, Workload] = Field(default_factory=dict)
    factors: dict[Name, dict[Name, Level]] = Field(default_factory=dict)
    comparisons: dict[Name, Comparison] = Field(default_factory=dict)
    blocks: Blocks | None = None


class StudyFile(Section):
    """A whole study file. `scale` selects which of `scales` is laid over the other keys."""

    title: str = ""
    description: str = ""
    scale: Name | None = None
    scales: dict[Name, Scale] = Field(default_factory=dict)
    seed: int = Field(default=1, ge=0)
    models: dict[Name, Model] = Field(min_length=1)
    builds: dict[Name, Build] = Field(min_length=1)
    workloads: dict[Name, Workload] = Field(min_length=1)
    factors: dict[Name, dict[Name, Level]] = Field(default_factory=dict)
    arms: Arms
    blocks: Blocks
    comparisons: dict[Name, Comparison] = Field(default_factory=dict)
    pivots: dict[Name, Pivot] = Field(default_factory=dict)
    identity: Identity | None = None
    published: tuple[Published, ...] = ()


_SWEEP = {
    "type": "object",
    "required": ["sweep"],
    "properties": {"sweep": {"type": "object", "minProperties": 1}},
}
"""An entry that stands for many (see `sweeps`): its name has the swept names in braces."""

_SHORT_FORMS: dict[str, dict[str, Any]] = {
    "Level": {"type": "array", "items": {"type": "string"}},
    "Arms": {"type": "array", "items": {"$ref": "#/$defs/ListedArm"}},
    "Pin": {"type": "string"},
}
"""What may stand in a mapping's place: see their `_short_form`."""


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of study files, for editors; config/study.schema.json is its copy."""
    schema = StudyFile.model_json_schema(mode="validation")
    schema["required"] = ["arms"]  # The others may come from a scale.
    definitions = schema["$defs"]
    for keys in (schema["properties"], definitions["Scale"]["properties"]):
        levels = next(iter(keys["factors"]["patternProperties"].values()))
        for entries in (*(keys[section] for section in SECTIONS), levels):
            entries["patternProperties"][r"\{"] = _SWEEP
    matrix = definitions["Arms"]["properties"]["matrix"]["patternProperties"]
    for levels in matrix.values():
        levels["anyOf"].append({"const": ALL})
    for name, short in _SHORT_FORMS.items():
        definitions[name] = {"anyOf": [definitions[name], short]}
    _take_numbers(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _take_numbers(node: Any) -> None:
    """Let a number or a boolean stand wherever a text may: the reader takes it as written."""
    if isinstance(node, dict):
        if node.get("type") == "string" and "format" not in node:
            node["type"] = ["string", "number", "boolean"]
        for inside in node.values():
            _take_numbers(inside)
    elif isinstance(node, list):
        for inside in node:
            _take_numbers(inside)
