"""The figures of a run: unit, and which direction is better."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Quantity:
    """What a metric's name stands for."""

    unit: str
    better: Literal["higher", "lower"]


METRICS = {
    "prompt_tps": Quantity("tokens/s", "higher"),
    "generation_tps": Quantity("tokens/s", "higher"),
    "wall_s": Quantity("s", "lower"),
    "load_s": Quantity("s", "lower"),
    "peak_rss_bytes": Quantity("B", "lower"),
    "read_bytes": Quantity("B", "lower"),
    "major_faults": Quantity("", "lower"),
}
"""Known to every study: the engine tools' own figures, then those measured from outside.

The figures of a `command` workload stand in its study file.
"""
