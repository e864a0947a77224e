"""The metrics that coldbench itself knows: their kind, and which direction is better."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate", "time", "bytes", "count", "share", "other"]
Better = Literal["higher", "lower"]
Source = Literal["outside", "engine", "tokens", "gather", "stream", "gemma-cpp"]


@dataclass(frozen=True)
class Metric:
    """A figure: `rate` in tokens/s, `time` in seconds (or in `unit`), `share` from 0 to 1.

    `source` is what prints it, or all that do: an engine's tool or one of our kernels; `tokens` is
    a tool that tells how many it generated, `outside` what coldbench takes itself, whatever runs.
    `speed` marks what an experiment is about: it is tested for drift and in every A/A pair,
    whatever a study claims.
    """

    kind: Kind
    better: Better | None
    source: Source | tuple[Source, ...] = "outside"
    unit: str = ""
    speed: bool = False


METRICS: dict[str, Metric] = {
    "prompt_tps": Metric("rate", "higher", "engine", speed=True),
    "generation_tps": Metric("rate", "higher", "engine", speed=True),
    "ns_per_gather": Metric("time", "lower", "gather", "ns", speed=True),
    "ns_per_page": Metric("time", "lower", "gather", "ns"),
    "pages_unique": Metric("count", None, "gather"),
    "hints": Metric("count", None, "gather"),
    "s_per_token": Metric("time", "lower", "stream", speed=True),
    "first_token_s": Metric("time", "lower", ("stream", "gemma-cpp")),
    "request_s": Metric("time", "lower", "stream"),
    "bytes_per_token": Metric("bytes", "lower", "stream"),
    "overlap": Metric("share", "higher", "stream"),
    "retained_bytes": Metric("bytes", None, "stream"),
    "wall_s": Metric("time", "lower"),
    "load_s": Metric("time", "lower"),
    "peak_rss_bytes": Metric("bytes", "lower"),
    "server_peak_rss_bytes": Metric("bytes", "lower"),
    "anon_at_peak_bytes": Metric("bytes", "lower"),
    "file_at_peak_bytes": Metric("bytes", "lower"),
    "read_bytes": Metric("bytes", "lower"),
    "read_bytes_per_token": Metric("bytes", "lower", "tokens"),
    "major_faults": Metric("count", "lower"),
    "table_residency": Metric("share", "lower"),
    "table_residency_before": Metric("share", "lower"),
}
"""What is known about the metrics that coldbench itself takes or whose driver it knows."""


def printed_by(source: Source) -> list[str]:
    """Return the metrics that `source` has."""
    return [
        name
        for name, metric in METRICS.items()
        if source in ((metric.source,) if isinstance(metric.source, str) else metric.source)
    ]


def known(metric: str) -> Metric:
    """Return what is known about a metric; one of a user's own has no direction."""
    return METRICS.get(metric, Metric("other", None))
