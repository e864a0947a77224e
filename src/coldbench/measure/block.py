"""A block: every arm once per cache state, in the manifest's order, whatever interrupts it.

A block that other work disturbed is run again, whole: a further pass of the same block.
"""

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
from coldbench.measure import passes
from coldbench.measure.bench import Bench, empty_home
from coldbench.measure.journal import Journal, PlannedRun
from coldbench.measure.native import launcher_program
from coldbench.measure.passes import Key
from coldbench.measure.quiet import judged, wait_until_quiet
from coldbench.measure.schedule import order
from coldbench.measure.settings import put_back_left_over
from coldbench.records import CacheState
from coldbench.sources.builds import check_build
from coldbench.sources.models import check_model
from coldbench.sources.traces.prepared import check_feed
from coldbench.study.quiet import QuietSettings
from coldbench.study.specs import Arm, BlockSpec, IdentitySpec
from coldbench.study.workloads import Workload

log = logging.getLogger(__name__)

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
    feed: dict[str, Any] | None = None


def measure_block(spec: BlockSpec, prepared: Prepared, receipt: Path, quiet: QuietSettings) -> None:
    """Measure what is missing of a block and write its receipt.

    Arms that earlier passes did not know form a new pass of their own. Unless `quiet` only warns,
    waits before each pass until the machine is quiet, and measures all arms in a new pass, in
    another order, where a run was disturbed. Holds the machine alone. Raises ColdbenchError where
    the machine is never quiet, and for what is not, or no longer, as the records say.
    """
    arms = [arm.with_model(prepared.model["bytes"]) for arm in spec.arms]
    slots = [Slot(state, arm, spec.driven) for state in spec.states for arm in arms]

    def shuffled(new: list[Slot], repeat: str) -> list[Slot]:
        arranged: list[Slot] = []
        for state in spec.states:
            by_name = {slot.arm.name: slot for slot in new if slot.state == state}
            seed = f"{spec.seed}/{spec.model}/{spec.workload}/{state}{repeat}"
            arranged += [by_name[name] for name in order([*by_name], block=spec.block, seed=seed)]
        return arranged

    name = f"block-{spec.block:03d}"
    _carry_out(spec, prepared, receipt, slots, shuffled, spec.block, name, quiet)


def check_identity(spec: IdentitySpec, prepared: Prepared, receipt: Path) -> None:
    """Make every arm compute, with a repeat and a mutant of each group; write a receipt.

    Where the spec asks for repeats, each arm computes so often instead, in rounds of all arms.
    The cache state is left alone: these runs are compared, not timed.
    """
    slots: list[Slot] = []
    groups: set[tuple[str, ...]] = set()
    arms = [arm.with_model(prepared.model["bytes"]) for arm in spec.arms]
    for arm in arms:
        slots.append(Slot("unmeasured", arm, spec.driven))
        group = tuple(arm.levels.get(factor, "") for factor in spec.group_by)
        if group not in groups:
            groups.add(group)
            if spec.repeats is None:
                slots.append(Slot("unmeasured", arm, spec.driven, "repeat"))
            slots.append(Slot("unmeasured", arm, spec.mutant, "mutant"))
    for number in range(2, (spec.repeats or 1) + 1):
        slots += [Slot("unmeasured", arm, spec.driven, f"text {number}") for arm in arms]
    _carry_out(spec, prepared, receipt, slots, lambda new, _: new, 0, "identity", None)


def _carry_out(
    spec: BlockSpec | IdentitySpec,
    prepared: Prepared,
    receipt: Path,
    slots: list[Slot],
    arrange: Callable[[list[Slot], str], list[Slot]],
    block: int,
    name: str,
    quiet: QuietSettings | None,
) -> None:
    title = f"{spec.study}: {spec.model} {spec.workload} {name}"
    cache, results = prepared.cache, prepared.results
    with machine(alone=True, purpose=title):
        _no_orphans(cache)
        put_back_left_over()
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
            feed=prepared.feed,
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

        def add_pass(new: list[Slot], repeat: str = "") -> None:
            arranged = enumerate(arrange(new, repeat), start=1)
            journal.plan([plan(slot, position) for position, slot in arranged])

        wanted: dict[Key, Slot] = {}
        for slot in slots:
            other = wanted.setdefault((slot.state, plan(slot, 0).cell), slot)
            if other is not slot:
                raise ColdbenchError(_the_same(other.arm, slot.arm, spec.model))
        add_pass([wanted[key] for key in passes.unplanned(journal, wanted)])
        _run_all(bench, journal, wanted, title, quiet)
        repeats = quiet.quiet_limits.repeats if quiet and not quiet.only_warns else 0
        while passes.wants_repeat(journal, wanted, repeats):
            log.info("%s | spoilt: all of it is measured again", title)
            add_pass([*wanted.values()], f"/{journal.next_pass}")
            _run_all(bench, journal, wanted, title, quiet)
        _check_sources(prepared)
    write_json(
        receipt,
        {
            "model": spec.model,
            "workload": spec.workload,
            "block": block,
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
            "runs": {
                run.run: attempts[-1].status
                for key in wanted
                for run in journal.passes(*key)
                if (attempts := journal.attempts(run))
            },
        },
    )


def _the_same(first: Arm, second: Arm, model: str) -> str:
    return (
        f"arms {first.name} and {second.name} do the same on model {model}: builds of one content, "
        "and the same arguments, environment and budget in bytes; leave one out, or for an A/A "
        f"pair write {{name: {second.name}, aa_of: {first.name}}}"
    )


def _check_sources(prepared: Prepared) -> None:
    """Refuse to measure, or to vouch for, what is no longer what the records say it is."""
    check_model(prepared.model)
    if prepared.feed is not None:
        check_feed(prepared.feed)
    for record in prepared.builds.values():
        check_build(record)


def _run_all(
    bench: Bench,
    journal: Journal,
    slots: dict[Key, Slot],
    title: str,
    quiet: QuietSettings | None,
) -> None:
    planned = passes.latest(journal, slots)
    left = [run for run in planned if passes.missing(journal, run)]
    if left and quiet and not quiet.only_warns:
        wait_until_quiet(bench.model_path, quiet.quiet_limits, title)
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
            # Before it is recorded: a run that replaced its model or build measured neither.
            check_model(bench.model)
            check_build(bench.builds[slot.arm.build])
            if quiet:
                record = judged(record, quiet)
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
            if not passes.void(journal.attempts(run)):
                break


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
