"""What a run has shown, in the one vocabulary of outcomes; the first fault found is the status."""

from typing import Any

from coldbench.measure import delivery
from coldbench.measure.certificate import disproved
from coldbench.measure.delivery import Printed
from coldbench.records import Run
from coldbench.study.specs import Arm
from coldbench.study.workloads import Workload


def judged(
    run: Run,
    arm: Arm,
    driven: Workload,
    *,
    build: dict[str, Any],
    model: dict[str, Any],
    unprimed: str,
    primed_bytes: int | None,
    budget_enforced: bool | None,
    disturbed_settings: str,
    measured: Printed,
    probe: Printed | None,
) -> Run:
    """Return `run`, whose status is its driver's, with that of all it was meant to be.

    In this order: killed by its budget or a limit, with what it had taken until then; not in its
    cache state, or primed by a run that failed (`unprimed` says why); a budget that was not
    enforced, or host settings that something else changed (`disturbed_settings` says which); a
    treatment that was not delivered. What is not ok keeps the figures in its record.
    """
    run = _killed(run)
    if run.status != "ok":
        return run
    if unprimed:
        return _with(run, "not warm", f"its priming run: {unprimed}")
    if reason := disproved(
        run.state,
        run.certificate,
        before=run.before,
        after=run.after,
        io=run.io,
        primed_bytes=primed_bytes,
        read_ahead_bytes=1024 * (run.read_ahead_kb or 0),
    ):
        return _with(run, f"not {run.state}", reason)
    if budget_enforced is False:
        return _with(
            run,
            "not delivered",
            f"its budget of {_mebibytes(run.memory.budget_bytes)} was not in force",
        )
    if disturbed_settings:
        return _with(run, "not delivered", disturbed_settings)
    if run.state == "unmeasured":
        return run
    found = delivery.check(
        arm, driven, run, build=build, model=model, measured=measured, probe=probe
    )
    run = run.model_copy(update={"delivered": found.delivered, "effective": found.effective})
    return _with(run, "not delivered", found.reason) if found.reason else run


def _killed(run: Run) -> Run:
    """Say what a killed run had taken until then; a process killed in its group is a failure."""
    memory = run.memory
    status, reason = "failed", run.reason
    if memory.budget_bytes and memory.cgroup_oom_kills:
        status = "over budget"
        reason = f"killed: out of memory under a {_mebibytes(memory.budget_bytes)} budget"
    elif run.exit.ended not in {"time limit", "output limit"}:
        return run
    taken = f"peak RSS {_mebibytes(memory.peak_rss_bytes)}, {_mebibytes(run.io.read_bytes)} read"
    return _with(run, status, f"{reason} ({taken})")


def _with(run: Run, status: str, reason: str) -> Run:
    return run.model_copy(update={"status": status, "reason": reason})


def _mebibytes(size: int | None) -> str:
    return "n/a" if size is None else f"{size / 2**20:,.0f} MiB"
