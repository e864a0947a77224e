"""The settings about other work on the machine (config/config.yaml and --config)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from coldbench.study.scalars import Duration, Percent, Size


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("a value with its unit, such as 60s, 5% or 10MiB")
    return value


def _number(value: Any) -> Any:
    # In a mapping on the command line Snakemake leaves every scalar as text.
    return int(value) if isinstance(value, str) and value.isdecimal() else value


_WithUnit = BeforeValidator(_text)
_Count = Annotated[int, BeforeValidator(_number), Field(ge=0)]


class QuietLimits(BaseModel):
    """How much other work a run may have beside it, and what to do about more.

    `wait` is how long a block waits for a quiet machine (s), `repeats` how often a block with a
    disturbed run is measured again. A run is disturbed that exceeds one of the others: shares of
    the time of all CPUs that other work took and that the hypervisor took, bytes a second that
    others moved on the model's disk, bytes swapped in, events of thermal throttling. Why the
    defaults are what they are stands in `measure.quiet.disturbed`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    wait: Annotated[Duration, _WithUnit] = 60.0
    repeats: _Count = 2
    other_cpu: Annotated[Percent, _WithUnit] = 0.05
    stolen: Annotated[Percent, _WithUnit] = 0.10
    other_disk: Annotated[Size, _WithUnit] = 10 * 2**20
    swapped_in: Annotated[Size, _WithUnit] = 2**20
    throttled: _Count = 0


class QuietSettings(BaseModel):
    """What to do about other work: measure a block again (`repeat`), or only mark (`warn`)."""

    model_config = ConfigDict(frozen=True, strict=True)

    quiet: Literal["repeat", "warn"] = "repeat"
    quiet_limits: QuietLimits = QuietLimits()

    @property
    def only_warns(self) -> bool:
        """Return whether a disturbed run counts, with a mark."""
        return self.quiet == "warn"
