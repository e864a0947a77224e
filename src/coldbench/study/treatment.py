"""What an arm means to do and what must be seen of it: the study file's `intent` and `expect`."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from coldbench.study.scalars import Name, RegularExpression, Text, listed, size_bytes


class _Section(BaseModel):
    """One mapping of a study file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- intent -------------------------------------------------------------------------------------

_Switch = Literal["on", "off"]


class Intent(_Section):
    """Settings by meaning; each build is given them in its own flags (`drivers.intent`)."""

    lazy: Literal["on", "auto", "off"] | None = None
    load_mode: Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"] | None = None
    mmap: _Switch | None = None
    mlock: _Switch | None = None
    direct_io: _Switch | None = None
    repack: _Switch | None = None

    @model_validator(mode="after")
    def _one_load_mode(self) -> Self:
        switches = [name for name in ("mmap", "mlock", "direct_io") if getattr(self, name)]
        if self.load_mode is not None and switches:
            raise ValueError(f"load_mode and {switches[0]} say the same thing twice; keep one")
        if self.direct_io == "on" and "on" in {self.mmap, self.mlock}:
            raise ValueError("direct_io: on excludes mmap: on and mlock: on")
        return self

    @property
    def given(self) -> dict[str, str]:
        """Return the settings that are given, in the order of their declaration."""
        return self.model_dump(exclude_none=True)

    def merged(self, later: "Intent") -> "Intent":
        """Return both, `later` winning. Raises ValueError where they exclude each other."""
        return Intent.model_validate(self.given | later.given)


class Host(_Section):
    """Settings of the machine while an arm runs (kernel doc: admin-guide/mm/transhuge, sysfs-bdi).

    `read_ahead_kb` is of the device that the model lies on.
    """

    read_ahead_kb: int | None = Field(default=None, ge=0, le=2**20)
    transparent_hugepage: Literal["always", "madvise", "never"] | None = None

    @property
    def given(self) -> dict[str, int | str]:
        """Return the settings that are given, in the order of their declaration."""
        return self.model_dump(exclude_none=True)

    def merged(self, later: "Host") -> "Host":
        """Return both, `later` winning."""
        return Host.model_validate(self.given | later.given)


# --- expectations -------------------------------------------------------------------------------

Quantity = Literal[
    "table_residency",
    "major_faults",
    "read_bytes",
    "peak_rss_bytes",
    "peak_locked_bytes",
    "anon_at_peak_bytes",
    "file_at_peak_bytes",
]
"""What can be bounded: a share of the table after the run, a number of faults, bytes."""

_BOUND = re.compile(r"(?P<sign><=|>=|<|>) ?(?P<value>\d+(?:\.\d+)?)(?P<unit> ?[A-Za-z%]+)?", re.A)
_HOLDS = {
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
}


def _limit(quantity: str, bound: str) -> tuple[str, float]:
    """Return sign and limit of a bound: a share, a number or bytes, as the quantity wants."""
    match = _BOUND.fullmatch(bound)
    unit = (match["unit"] or "").strip() if match else ""
    if match and quantity == "table_residency" and unit == "%":
        return match["sign"], float(match["value"]) / 100
    if match and quantity == "major_faults" and not unit:
        return match["sign"], float(match["value"])
    if match and quantity.endswith("_bytes") and unit:
        return match["sign"], size_bytes(match["value"] + unit)
    form = {"table_residency": '"< 10%"', "major_faults": '"< 100"'}.get(quantity, '"> 1GiB"')
    raise ValueError(f"{quantity}: {bound!r} is no bound; write it like {form}")


def within(quantity: str, bound: str, value: float) -> bool:
    """Return whether `value` (a share, a number or bytes) keeps `bound`, such as "< 10%"."""
    sign, limit = _limit(quantity, bound)
    return bool(_HOLDS[sign](value, limit))


def _checked(bounds: dict[str, str]) -> dict[str, str]:
    for quantity, bound in bounds.items():
        _limit(quantity, bound)
    return bounds


_Texts = Annotated[
    tuple[Text, ...], BeforeValidator(listed, json_schema_input_type=Text | tuple[Text, ...])
]
_Patterns = Annotated[
    tuple[RegularExpression, ...],
    BeforeValidator(listed, json_schema_input_type=str | tuple[str, ...]),
]


class Observed(_Section):
    """What one run must show: lines of its output, settings in force, buffers, counters."""

    log: _Patterns = ()
    no_log: _Patterns = ()
    effective: dict[Name, Text] = {}
    buffers: _Texts = ()
    bounds: Annotated[dict[Quantity, Text], AfterValidator(_checked)] = {}

    def plus(self, other: "Observed") -> "Observed":
        """Return what both ask for; a setting or bound of `other` replaces an equal-named one."""
        return Observed(
            log=self.log + other.log,
            no_log=self.no_log + other.no_log,
            effective=self.effective | other.effective,
            buffers=self.buffers + other.buffers,
            bounds=self.bounds | other.bounds,
        )


class Expected(Observed):
    """What the runs of an arm must show: in every cache state, and in one alone."""

    cold: Observed | None = None
    warm: Observed | None = None

    def in_state(self, state: str) -> Observed:
        """Return what a run in `state` must show."""
        own = {"cold": self.cold, "warm": self.warm}.get(state)
        return Observed.plus(self, own or Observed())

    def merged(self, later: "Expected") -> "Expected":
        """Return what both ask for, `later` winning."""
        both = Observed.plus(self, later)
        return Expected(
            cold=_both(self.cold, later.cold),
            warm=_both(self.warm, later.warm),
            **{name: getattr(both, name) for name in Observed.model_fields},
        )


def _both(one: Observed | None, other: Observed | None) -> Observed | None:
    return one.plus(other) if one and other else one or other


class Expect(Expected):
    """What a level of a factor expects; `for_build` adds to it on that build."""

    for_build: dict[Name, Expected] = Field(default_factory=dict)

    def on(self, build: str) -> Expected:
        """Return what is expected on `build`."""
        general: dict[str, Any] = {name: getattr(self, name) for name in Expected.model_fields}
        return Expected(**general).merged(self.for_build.get(build, Expected()))
