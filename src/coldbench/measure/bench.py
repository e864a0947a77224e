"""One run: refuse it with a reason, or put the cache in its state, launch, observe, record."""

import os
import resource
import shutil
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.common.hashing import data_sha256, text_md5
from coldbench.drivers.base import Output, Result, failure
from coldbench.drivers.registry import driver_for
from coldbench.measure import preflight
from coldbench.measure.cgroup import Budget, memory_budget
from coldbench.measure.host import host_facts, host_state
from coldbench.measure.journal import PlannedRun
from coldbench.measure.launcher import (
    PAD,
    Launched,
    LauncherError,
    LauncherKilledError,
    environment_for,
    launch,
)
from coldbench.measure.pagecache import evict, resident_bytes
from coldbench.records import PROTOCOL, CacheState, Residency, Run
from coldbench.study.plan import Arm
from coldbench.study.schema import Workload


@dataclass(frozen=True)
class Bench:
    """What the runs of a block share: the prepared model and builds, and where output goes.

    `model` and `builds` are the records that `sources` wrote; `home` is an empty folder that the
    engine sees as its home; `logs` keeps the two streams of every run, named relative to
    `results` in the record.
    """

    study: str
    model_name: str
    workload_name: str
    model: dict[str, Any]
    builds: dict[str, dict[str, Any]]
    launcher: Path
    home: Path
    results: Path
    logs: Path

    @property
    def model_path(self) -> Path:
        """Return the file the engine is given, by the study's name for it, links unresolved."""
        return Path(self.model["path"])

    @property
    def model_files(self) -> list[Path]:
        """Return all files of the model, as they are evicted and observed."""
        return [Path(file["path"]) for file in self.model["files"]]

    @cached_property
    def host(self) -> dict[str, Any]:
        """Return the facts of this machine that do not change during a block."""
        return host_facts(self.model_path)

    def program(self, build: str, driven: Workload) -> str:
        """Return the program's path in a build, or its bare name where the build lacks it."""
        name = driver_for(driven).program(driven)
        found = self.builds[build]["programs"].get(name)
        return str(found["path"]) if found else name

    def plan(
        self,
        arm: Arm,
        driven: Workload,
        state: CacheState,
        *,
        block: int,
        pass_: int,
        position: int,
        variant: str = "",
    ) -> PlannedRun:
        """Return the manifest entry of one run.

        `cell` is the hash of the run's lane (model and workload by name) and of all that decides
        its outcome by content: a renamed arm keeps its results, a changed build loses them. Twins
        stay apart.
        """
        argv = driver_for(driven).argv(
            driven, self.program(arm.build, driven), str(self.model_path), arm.args
        )
        hashes = {
            "model": self.model["content"],
            "build": self.builds[arm.build]["content"],
            "arm": data_sha256(
                {
                    "args": arm.args,
                    "environment": arm.environment,
                    "budget": arm.budget,
                    "twin": arm.name if arm.twin_of else None,
                }
            ),
            "workload": data_sha256(driven.model_dump(mode="json", exclude={"label"})),
        }
        return PlannedRun(
            run=f"{block:03d}.{pass_}.{position:03d}",
            block=block,
            pass_=pass_,
            position=position,
            state=state,
            arm=arm.name,
            build=arm.build,
            cell=data_sha256(
                {
                    "protocol": PROTOCOL,
                    "lane": [self.model_name, self.workload_name],
                    "variant": variant,
                    **hashes,
                }
            )[:32],
            hashes=hashes,
            argv=argv,
            environment={
                name: value for name, value in self._environment(arm, driven).items() if name != PAD
            },
        )

    def _environment(self, arm: Arm, driven: Workload) -> dict[str, str]:
        return environment_for({**driven.environment, **arm.environment}, self.home)

    def execute(self, planned: PlannedRun, arm: Arm, driven: Workload, attempt: int) -> Run:
        """Make one run and return its record; a run that cannot be made is a record as well."""
        refused, notes = preflight.check(
            planned, driven, environment_for({}, self.home), self.model_path
        )
        record = Run(
            run=planned.run,
            attempt=attempt,
            study=self.study,
            model=self.model_name,
            workload=self.workload_name,
            build=planned.build,
            arm=planned.arm,
            cell=planned.cell,
            hashes=planned.hashes,
            block=planned.block,
            pass_=planned.pass_,
            position=planned.position,
            state=planned.state,
            argv=planned.argv,
            environment=planned.environment,
            started=datetime.now(UTC).isoformat(timespec="microseconds"),
            host=self.host,
            status="refused",
            reason=refused or "",
            notes=notes,
            table_total_bytes=(self.model["table"] or {}).get("bytes"),
        )
        if refused:
            return record
        try:
            return self._measure(record, planned, arm, driven)
        except LauncherError:
            raise
        except LauncherKilledError as error:
            return record.model_copy(update={"status": "void", "reason": str(error)})
        except ColdbenchError as error:
            return record.model_copy(update={"reason": str(error)})

    def _measure(self, record: Run, planned: PlannedRun, arm: Arm, driven: Workload) -> Run:
        name = f"{planned.run}.{planned.state}.{planned.arm}.{record.attempt}"
        unprimed = ""
        # One group for priming and measuring: pages charged to another would not be warm in it.
        with memory_budget(arm.budget, planned.cell[:12]) as group:
            if planned.state != "unmeasured":
                evict(self.model_files)
            if planned.state == "warm":
                # From an empty cache, so that what is warm is what this arm itself reads.
                with tempfile.TemporaryDirectory(prefix="coldbench-prime-") as folder:
                    primed = self._launch(planned, arm, driven, Path(folder), "prime", group)
                unprimed = failure(driven, Output(primed.exit, b"", ""))
            before, machine_before = self._residency(), host_state()
            launched = self._launch(planned, arm, driven, self.logs, name, group)
            machine_after, after = host_state(), self._residency()
            budget = {
                "budget_bytes": arm.budget,
                "cgroup_peak_bytes": group.peak_bytes(),
                "cgroup_oom_kills": group.oom_kills(),
            }
        stdout, stderr = self.logs / f"{name}.out", self.logs / f"{name}.err"
        result = driver_for(driven).read(
            driven,
            Output(
                exit=launched.exit,
                stdout=stdout.read_bytes(),
                stderr=stderr.read_text(encoding="utf-8", errors="replace"),
                memlock_limit_bytes=_memlock_limit(),
            ),
        )
        if result.status == "ok" and unprimed:
            reason = f"not warm: its priming run: {unprimed}"
            result = replace(result, status="invalid", reason=reason, metrics={})
        result = _with_kill(result, launched, budget)
        return record.model_copy(
            update={
                "started": launched.started,
                "machine": {"before": machine_before, "after": machine_after},
                "status": result.status,
                "reason": result.reason,
                "notes": [*record.notes, *result.notes],
                "exit": launched.exit,
                "load_s": result.load_s,
                "metrics": result.metrics,
                "effective": result.effective,
                "memory": launched.memory.model_copy(update=budget),
                "io": launched.io,
                "before": before,
                "after": after,
                "digest": text_md5(result.text) if result.text else None,
                "tokens": result.tokens,
                "rows": result.rows,
                "output": {
                    "stdout": str(stdout.relative_to(self.results)),
                    "stderr": str(stderr.relative_to(self.results)),
                },
            }
        )

    def _launch(
        self,
        planned: PlannedRun,
        arm: Arm,
        driven: Workload,
        folder: Path,
        name: str,
        group: Budget,
    ) -> Launched:
        folder.mkdir(parents=True, exist_ok=True)
        # Before each process: what one arm leaves there must not reach the next.
        _empty(self.home)
        return launch(
            self.launcher,
            planned.argv,
            self._environment(arm, driven),
            stdout=folder / f"{name}.out",
            stderr=folder / f"{name}.err",
            time_limit_s=driven.time_limit,
            output_limit_bytes=driven.output_limit,
            cgroup=group.procs,
        )

    def _residency(self) -> Residency:
        table = self.model["table"]
        return Residency(
            files={path.name: resident_bytes(path) for path in self.model_files},
            table_bytes=None
            if table is None
            else resident_bytes(Path(table["file"]), table["offset"], table["bytes"]),
        )


def _with_kill(result: Result, launched: Launched, budget: dict[str, Any]) -> Result:
    """Say what a killed run had taken until then; a process killed in its group is a failure."""
    if budget["cgroup_oom_kills"]:
        reason = f"killed: out of memory under a {budget['budget_bytes'] / 2**20:.0f} MiB budget"
    elif launched.exit.ended in {"time limit", "output limit"}:
        reason = result.reason
    else:
        return result
    taken = f"peak RSS {_mebibytes(launched.memory.peak_rss_bytes)}"
    taken += f", {_mebibytes(launched.io.read_bytes)} read"
    return replace(result, status="failed", reason=f"{reason} ({taken})", metrics={})


def _mebibytes(size: int | None) -> str:
    return "n/a" if size is None else f"{size / 2**20:,.0f} MiB"


def _memlock_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit


def empty_home(cache: Path) -> Path:
    """Return the folder that engines see as their home, emptied: the same path in every run."""
    home = cache / "home"
    _empty(home)
    return home


def _empty(home: Path) -> None:
    try:
        if home.is_symlink() or not home.is_dir():
            home.unlink(missing_ok=True)
        else:
            # An engine may have left folders that not even their owner may list.
            for folder, _, _ in os.walk(home):
                for entry in Path(folder).iterdir():
                    if entry.is_dir() and not entry.is_symlink():
                        entry.chmod(0o700)
            shutil.rmtree(home)
        home.mkdir(parents=True)
    except OSError as error:
        raise ColdbenchError(
            f"{home}: cannot be emptied: {error.strerror}; delete it and run the same command again"
        ) from error
