"""The metrics that coldbench itself knows: their kind, and which direction is better."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate", "time", "bytes", "count", "share", "other"]
Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Metric:
    """A figure: `rate` in tokens/s, `time` in seconds, `share` from 0 to 1."""

    kind: Kind
    better: Better | None


METRICS: dict[str, Metric] = {
    "prompt_tps": Metric("rate", "higher"),
    "generation_tps": Metric("rate", "higher"),
    "wall_s": Metric("time", "lower"),
    "load_s": Metric("time", "lower"),
    "peak_rss_bytes": Metric("bytes", "lower"),
    "anon_at_peak_bytes": Metric("bytes", "lower"),
    "file_at_peak_bytes": Metric("bytes", "lower"),
    "read_bytes": Metric("bytes", "lower"),
    "major_faults": Metric("count", "lower"),
    "table_residency": Metric("share", "lower"),
    "table_residency_before": Metric("share", "lower"),
}
"""What is known about the metrics that coldbench itself takes or whose driver it knows."""

OF_ENGINE_TOOLS = frozenset({"prompt_tps", "generation_tps"})
"""Printed by the llama.cpp tools; the others are taken from outside, whatever runs."""


def known(metric: str) -> Metric:
    """Return what is known about a metric; one of a user's own has no direction."""
    return METRICS.get(metric, Metric("other", None))
