"""Run records made by hand, for the tests of the analysis."""

from typing import Any

from coldbench.records import Exit, Io, Memory, Residency, Run


def fabricated_run(
    arm: str,
    block: int,
    *,
    model: str = "gemma",
    workload: str = "pp512",
    state: str = "cold",
    pass_: int = 1,
    attempt: int = 1,
    status: str = "ok",
    reason: str = "",
    metrics: dict[str, float] | None = None,
    peak_rss: int | None = 649 * 2**20,
    read: int | None = 642 * 2**20,
    faults: int | None = 3,
    table_after: int | None = 0,
    table_total: int | None = 512 * 2**20,
    **more: Any,
) -> Run:
    cell = f"{model}/{workload}/{arm}"
    return Run.model_validate(
        {
            "run": f"{cell}/{state}/{block}",
            "attempt": attempt,
            "study": "demo",
            "model": model,
            "workload": workload,
            "build": "patched",
            "arm": arm,
            "cell": cell,
            "hashes": {},
            "block": block,
            "pass": pass_,
            "position": 1,
            "state": state,
            "argv": ["engine"],
            "environment": {},
            "started": f"2026-11-30T10:00:{block:02d}Z",
            "host": {},
            "status": status,
            "reason": reason,
            "exit": Exit(ended="exit", code=0, wall_s=2.0),
            "metrics": metrics or {},
            "memory": Memory(peak_rss_bytes=peak_rss),
            "io": Io(read_bytes=read, major_faults=faults),
            "after": Residency(table_bytes=table_after),
            "table_total_bytes": table_total,
            **more,
        }
    )


def cells_of(runs: list[Run]) -> dict[str, tuple[str, str, str]]:
    return {run.cell: (run.model, run.workload, run.arm) for run in runs}
