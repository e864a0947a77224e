"""A block: every arm once per cache state, in the manifest's order, whatever interrupts it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.common.locks import machine
from coldbench.measure.bench import Bench, empty_home
from coldbench.measure.journal import Journal, PlannedRun
from coldbench.measure.native import launcher_program
from coldbench.measure.schedule import order
from coldbench.records import CacheState, Run
from coldbench.sources.builds import check_build
from coldbench.sources.models import check_model
from coldbench.study.plan import Arm, BlockSpec, IdentitySpec
from coldbench.study.schema import Workload

log = logging.getLogger(__name__)

VOID_ATTEMPTS = 3
"""How often a run is made until one is not void; all attempts are kept and counted."""

ORPHAN_WAIT_S = 10.0


@dataclass(frozen=True)
class Slot:
    """What one run is of: an arm under a workload in a cache state; `variant` marks a control."""

    state: CacheState
    arm: Arm
    driven: Workload
    variant: str = ""


@dataclass(frozen=True)
class Prepared:
    """What measuring starts from: the records of `sources`, and the folders to work in.

    Raw records go to `results`/raw, the streams of every run to `results`/logs.
    """

    model: dict[str, Any]
    builds: dict[str, dict[str, Any]]
    cache: Path
    results: Path


def measure_block(spec: BlockSpec, prepared: Prepared, receipt: Path) -> None:
    """Measure what is missing of a block and write its receipt.

    Arms that earlier passes did not know form a new pass of their own. Holds the machine alone.
    """
    slots = [Slot(state, arm, spec.driven) for state in spec.states for arm in spec.arms]

    def shuffled(new: list[Slot]) -> list[Slot]:
        arranged: list[Slot] = []
        for state in spec.states:
            by_name = {slot.arm.name: slot for slot in new if slot.state == state}
            seed = f"{spec.seed}/{spec.model}/{spec.workload}/{state}"
            arranged += [by_name[name] for name in order([*by_name], block=spec.block, seed=seed)]
        return arranged

    _carry_out(spec, prepared, receipt, slots, shuffled, spec.block, f"block-{spec.block:03d}")


def check_identity(spec: IdentitySpec, prepared: Prepared, receipt: Path) -> None:
    """Generate the greedy text of every arm, a repeat and a mutant of each group; write a receipt.

    The cache state is left alone: these runs are compared, not timed.
    """
    mutated = spec.driven.model_copy(update={"prompt": spec.mutant})
    slots: list[Slot] = []
    groups: set[tuple[str, ...]] = set()
    for arm in spec.arms:
        slots.append(Slot("unmeasured", arm, spec.driven))
        group = tuple(arm.levels.get(factor, "") for factor in spec.group_by)
        if group not in groups:
            groups.add(group)
            slots.append(Slot("unmeasured", arm, spec.driven, "repeat"))
            slots.append(Slot("unmeasured", arm, mutated, "mutant"))
    _carry_out(spec, prepared, receipt, slots, list, 0, "identity")


def _carry_out(
    spec: BlockSpec | IdentitySpec,
    prepared: Prepared,
    receipt: Path,
    slots: list[Slot],
    arrange: Callable[[list[Slot]], list[Slot]],
    block: int,
    name: str,
) -> None:
    title = f"{spec.study}: {spec.model} {spec.workload} {name}"
    cache, results = prepared.cache, prepared.results
    with machine(alone=True, purpose=title):
        _no_orphans(cache)
        _check_sources(prepared)
        bench = Bench(
            study=spec.study,
            model_name=spec.model,
            workload_name=spec.workload,
            model=prepared.model,
            builds=prepared.builds,
            launcher=launcher_program(cache),
            home=empty_home(cache),
            results=results,
            logs=results / "logs" / spec.model / spec.workload / name,
        )
        journal = Journal(results / "raw" / spec.model / spec.workload, name)

        def plan(slot: Slot, position: int) -> PlannedRun:
            return bench.plan(
                slot.arm,
                slot.driven,
                slot.state,
                block=block,
                pass_=journal.next_pass,
                position=position,
                variant=slot.variant,
            )

        wanted = {(slot.state, plan(slot, 0).cell): slot for slot in slots}
        known = journal.planned_cells()
        new = [slot for key, slot in wanted.items() if key not in known]
        journal.plan([plan(slot, position) for position, slot in enumerate(arrange(new), start=1)])
        planned = [run for run in journal.manifest if (run.state, run.cell) in wanted]
        _run_all(bench, journal, planned, wanted, title)
        _check_sources(prepared)
    write_json(
        receipt,
        {
            "model": spec.model,
            "workload": spec.workload,
            "journal": str(journal.runs_path.relative_to(results)),
            "cells": [
                {
                    "state": slot.state,
                    "variant": slot.variant,
                    "arm": slot.arm.name,
                    "levels": slot.arm.levels,
                    "cell": cell,
                }
                for (_, cell), slot in wanted.items()
            ],
            "runs": {run.run: journal.attempts(run)[-1].status for run in planned},
        },
    )


def _check_sources(prepared: Prepared) -> None:
    """Refuse to measure, or to vouch for, what is no longer what the records say it is."""
    check_model(prepared.model)
    for record in prepared.builds.values():
        check_build(record)


def _run_all(
    bench: Bench,
    journal: Journal,
    planned: list[PlannedRun],
    slots: dict[tuple[CacheState, str], Slot],
    title: str,
) -> None:
    left = [run for run in planned if _missing(journal, run)]
    begun = time.monotonic()
    for index, run in enumerate(left):
        slot = slots[run.state, run.cell]
        elapsed = time.monotonic() - begun
        remaining = f"{_clock(elapsed / index * (len(left) - index))}" if index else "?"
        log.info(
            "%s | run %d/%d | elapsed %s | remaining %s | %s %s",
            title,
            len(planned) - len(left) + index + 1,
            len(planned),
            _clock(elapsed),
            remaining,
            slot.variant or run.state,
            slot.arm.name,
        )
        while True:
            attempt = len(journal.attempts(run)) + 1
            record = bench.execute(run, slot.arm, slot.driven, attempt)
            # Before it is recorded: a run beside which the model was replaced measured neither.
            check_model(bench.model)
            journal.append(record)
            if record.status != "ok":
                kept = " and ".join(str(bench.results / path) for path in record.output.values())
                log.warning(
                    "%s | %s %s: %s: %s%s",
                    title,
                    run.state,
                    slot.arm.name,
                    record.status,
                    record.reason,
                    f" (output: {kept})" if kept else "",
                )
            if not _void(journal.attempts(run)):
                break


def _missing(journal: Journal, planned: PlannedRun) -> bool:
    """Return whether a job that begins has this run to make: it was not made, or not for good.

    What refused a run may have been mended since, so each job tries it anew.
    """
    attempts = journal.attempts(planned)
    return not attempts or attempts[-1].status == "refused" or _void(attempts)


def _void(attempts: list[Run]) -> bool:
    """Return whether a run still wants another attempt; refusals do not count against it."""
    made = [run for run in attempts if run.status != "refused"]
    return attempts[-1].status == "void" and len(made) < VOID_ATTEMPTS


def _no_orphans(cache: Path) -> None:
    """Wait for engines of an earlier, killed run to be gone; they would disturb and mislead."""
    programs = cache / "builds"
    deadline = time.monotonic() + ORPHAN_WAIT_S
    while True:
        alive = [
            process.info["pid"]
            for process in psutil.process_iter(["pid", "exe"])
            if process.info["exe"] and Path(process.info["exe"]).is_relative_to(programs)
        ]
        if not alive:
            return
        if time.monotonic() > deadline:
            raise ColdbenchError(
                f"an engine of an earlier run is still alive (pid {', '.join(map(str, alive))}); "
                "end it and run the same command again"
            )
        time.sleep(0.2)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"
