"""The figures of a record, by metric."""

import math
from collections.abc import Callable

from coldbench.records import Residency, Run

OF_RECORD: dict[str, Callable[[Run], float | None]] = {
    "wall_s": lambda run: run.exit.wall_s,
    "load_s": lambda run: run.load_s,
    "peak_rss_bytes": lambda run: run.memory.peak_rss_bytes,
    "server_peak_rss_bytes": lambda run: run.memory.server_peak_rss_bytes,
    "anon_at_peak_bytes": lambda run: run.memory.anon_at_peak_bytes,
    "file_at_peak_bytes": lambda run: run.memory.file_at_peak_bytes,
    "read_bytes": lambda run: run.io.read_bytes,
    "read_bytes_per_token": lambda run: _per_token(run.io.read_bytes, run.tokens),
    "major_faults": lambda run: run.io.major_faults,
    "table_residency": lambda run: _share(run.after, run.table_total_bytes),
    "table_residency_before": lambda run: _share(run.before, run.table_total_bytes),
}
"""The metrics that stand in every record, whatever the driver."""


def values(run: Run) -> dict[str, float]:
    """Return the figures of a run by metric; those it lacks, and all of a run not ok, are absent.

    A figure that is not finite counts as lacking.
    """
    if run.status != "ok":
        return {}
    figures = {name: of(run) for name, of in OF_RECORD.items()} | run.metrics
    return {
        name: float(value)
        for name, value in figures.items()
        if value is not None and math.isfinite(value)
    }


def _per_token(read: int | None, tokens: int | None) -> float | None:
    """Return the bytes a generated token; loading and the prompt are in them."""
    return read / tokens if read is not None and tokens else None


def _share(residency: Residency, total: int | None) -> float | None:
    if residency.table_bytes is None or not total:
        return None
    return residency.table_bytes / total
