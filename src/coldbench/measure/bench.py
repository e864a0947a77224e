"""One run: refuse it with a reason, or put the cache in its state, launch, observe, record."""

import os
import resource
import shutil
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import cache_folder
from coldbench.common.hashing import data_sha256, text_md5
from coldbench.common.scratch import scratch
from coldbench.drivers.base import FEED, OUT, RPC, RPC_SERVER, Output, failure
from coldbench.drivers.registry import driver_for, marks_of
from coldbench.measure import preflight
from coldbench.measure.certificate import NotColdError, make_cold
from coldbench.measure.cgroup import NO_GROUP, Group, own_group
from coldbench.measure.delivery import Printed
from coldbench.measure.growth import sampled
from coldbench.measure.host import host_facts, host_state
from coldbench.measure.journal import PlannedRun
from coldbench.measure.judging import judged
from coldbench.measure.launcher import (
    PAD,
    Launched,
    LauncherError,
    LauncherKilledError,
    environment_for,
    launch,
)
from coldbench.measure.pagecache import resident_bytes
from coldbench.measure.rpc import rpc_server
from coldbench.measure.settings import NotPutBackError, in_force
from coldbench.records import PROTOCOL, CacheState, Residency, Run
from coldbench.study.specs import Arm
from coldbench.study.workloads import Workload


@dataclass(frozen=True)
class Bench:
    """What the runs of a block share: the prepared model and builds, and where output goes.

    `model`, `builds` and `feed` (None: there is none) are the records that `sources` wrote; `home`
    is an empty folder that the engine sees as its home; `logs` keeps the two streams of every run,
    named relative to `results` in the record.
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
    feed: dict[str, Any] | None = None
    _probed: dict[str, Printed | None] = field(default_factory=dict)

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

    def program(self, build: str, name: str) -> str:
        """Return a program's path in a build, or its bare name where the build lacks it."""
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
        program = self.program(arm.build, driver_for(driven).program(driven))
        args, _, _ = preflight.resolved(arm, driven, Path(program), self._bare)
        argv = driver_for(driven).argv(driven, program, str(self.model_path), args)
        files = {OUT: str(self._written)}
        if self.feed is not None:
            files[FEED] = self.feed["path"]
        argv = [files.get(arg, arg) for arg in argv]
        hashes = {
            "model": self.model["content"],
            "build": self.builds[arm.build]["content"],
            "arm": data_sha256(
                {
                    "args": args,
                    "intent": arm.intent.given,
                    "expect": arm.expect.model_dump(mode="json"),
                    "environment": arm.environment,
                    "budget": arm.budget,
                    **({"host": arm.host.given} if arm.host.given else {}),
                    "twin": arm.name if arm.twin_of else None,
                }
            ),
            "workload": data_sha256(driven.model_dump(mode="json", exclude={"label"})),
        }
        if self.feed is not None:
            hashes["feed"] = self.feed["content"]
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

    @property
    def _written(self) -> Path:
        """Return the file for what a program computed: of one name, so that argv is the same."""
        return self.home / "written"

    @property
    def _bare(self) -> dict[str, str]:
        return environment_for({}, self.home)

    def _environment(self, arm: Arm, driven: Workload) -> dict[str, str]:
        return environment_for({**driven.environment, **arm.environment}, self.home)

    def execute(self, planned: PlannedRun, arm: Arm, driven: Workload, attempt: int) -> Run:
        """Make one run and return its record; a run that cannot be made is a record as well."""
        refused, notes = preflight.check(planned, arm, driven, self._bare, self.model_path)
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
            notes=[*self.builds[planned.build].get("notes", ()), *notes, *_device(driven)],
            table_total_bytes=(self.model["table"] or {}).get("bytes"),
        )
        if refused:
            return record
        try:
            return self._measure(record, planned, arm, driven)
        except (LauncherError, NotPutBackError):
            raise
        except LauncherKilledError as error:
            return record.model_copy(update={"status": "void", "reason": str(error)})
        except NotColdError as error:
            # A warm run begins cold as well: its priming run must bring in what it reads itself.
            return record.model_copy(update={"status": f"not {record.state}", "reason": str(error)})
        except ColdbenchError as error:
            return record.model_copy(update={"reason": str(error)})

    def _measure(self, record: Run, planned: PlannedRun, arm: Arm, driven: Workload) -> Run:
        name = f"{planned.run}.{planned.state}.{planned.arm}.{record.attempt}"
        probe = self._probe(planned, arm, driven)
        certificate: dict[str, Any] = {}
        unprimed, primed = "", None
        # One group for priming and measuring: pages charged to another would not be warm in it.
        with (
            in_force(arm.host, self.model_path) as changed,
            own_group(arm.budget_bytes, planned.cell[:12], self.model_path) as group,
        ):
            if planned.state != "unmeasured":
                # By the user's name for it, so that a message names link and file.
                certificate = make_cold([self.model_path, *self.model_files[1:]])
            if planned.state == "warm":
                # From an empty cache, so that what is warm is what this arm itself reads.
                with scratch(cache_folder(), "prime") as folder:
                    first = self._launch(planned.argv, arm, driven, folder, "prime", group)
                unprimed = failure(driven, Output(first.exit, b"", ""))
                primed = self._residency().total_bytes
            before, machine_before = self._residency(), host_state(self.model_path)
            curve = self.logs / f"{name}.residency.csv"
            with sampled(driven.residency_every, self._residency, curve):
                launched = self._launch(planned.argv, arm, driven, self.logs, name, group)
            machine_after, after = host_state(self.model_path), self._residency()
            budget = {
                "budget_bytes": arm.budget_bytes,
                "cgroup_peak_bytes": group.peak_bytes(),
                "cgroup_oom_kills": group.oom_kills(),
            }
            enforced = group.in_force()
        stdout, stderr = self.logs / f"{name}.out", self.logs / f"{name}.err"
        output = Output(
            exit=launched.exit,
            stdout=stdout.read_bytes(),
            stderr=stderr.read_text(encoding="utf-8", errors="replace"),
            memlock_limit_bytes=_memlock_limit(),
            marked_s=dict(zip(marks_of(driven), launched.marks, strict=False)),
            written=self._written,
        )
        result = driver_for(driven).read(driven, output)
        _empty(self.home)  # logits may be a gibibyte
        observed = record.model_copy(
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
                "settings": changed.values,
                "certificate": certificate,
                "loaded": None if launched.loaded is None else [*launched.loaded],
                "memory": launched.memory.model_copy(update=budget),
                "io": launched.io,
                "before": before,
                "after": after,
                "digest": text_md5(result.text) if result.text else result.digest,
                "tokens": result.tokens,
                "rows": result.rows,
                "output": {
                    kind: str(path.relative_to(self.results))
                    for kind, path in {"stdout": stdout, "stderr": stderr, "curve": curve}.items()
                    if path.exists()
                },
            }
        )
        return judged(
            observed,
            arm,
            driven,
            build=self.builds[arm.build],
            model=self.model,
            unprimed=unprimed,
            primed_bytes=primed,
            budget_enforced=enforced,
            disturbed_settings=changed.disturbed,
            measured=Printed(output.stdout.decode(errors="replace"), output.stderr),
            probe=probe,
        )

    def _probe(self, planned: PlannedRun, arm: Arm, driven: Workload) -> Printed | None:
        """Return what the driver's unmeasured probe run prints, made once a block and arm."""
        if planned.state == "unmeasured":
            return None
        if planned.cell not in self._probed:
            program = planned.argv[0]
            args, _, _ = preflight.resolved(arm, driven, Path(program), self._bare)
            argv = driver_for(driven).probe(driven, program, str(self.model_path), args)
            self._probed[planned.cell] = None
            if argv is not None:
                with scratch(cache_folder(), "probe") as folder:
                    self._launch(argv, arm, driven, folder, "probe", NO_GROUP)
                    self._probed[planned.cell] = Printed(
                        *(
                            (folder / f"probe.{stream}").read_text(
                                encoding="utf-8", errors="replace"
                            )
                            for stream in ("out", "err")
                        )
                    )
        return self._probed[planned.cell]

    def _launch(
        self,
        argv: list[str],
        arm: Arm,
        driven: Workload,
        folder: Path,
        name: str,
        group: Group,
    ) -> Launched:
        folder.mkdir(parents=True, exist_ok=True)
        # Before each process: what one arm leaves there must not reach the next.
        _empty(self.home)
        rpc = getattr(driven, "rpc", None)
        if rpc is None:
            return self._run(argv, arm, driven, folder / name, group)
        program = Path(self.program(arm.build, RPC_SERVER))
        log = folder / f"{name}.rpc"
        with rpc_server(program, rpc.threads, self._environment(arm, driven), log) as server:
            prompt = getattr(driven, "prompt", None)  # a text, whatever it looks like
            argv = [arg if arg == prompt else arg.replace(RPC, server.address) for arg in argv]
            launched = self._run(argv, arm, driven, folder / name, group)
        memory = {"server_peak_rss_bytes": server.peak_rss_bytes}
        return replace(launched, memory=launched.memory.model_copy(update=memory))

    def _run(
        self, argv: list[str], arm: Arm, driven: Workload, stem: Path, group: Group
    ) -> Launched:
        return launch(
            self.launcher,
            argv,
            self._environment(arm, driven),
            stdout=stem.with_name(f"{stem.name}.out"),
            stderr=stem.with_name(f"{stem.name}.err"),
            time_limit_s=driven.time_limit,
            output_limit_bytes=driven.output_limit,
            group=group,
            marks=[*marks_of(driven).values()],
        )

    def _residency(self) -> Residency:
        table = self.model["table"]
        return Residency(
            files={path.name: resident_bytes(path) for path in self.model_files},
            table_bytes=None
            if table is None
            else resident_bytes(Path(table["file"]), table["offset"], table["bytes"]),
        )


def _device(driven: Workload) -> list[str]:
    if getattr(driven, "rpc", None) is None:
        return []
    return ["the device is llama.cpp's RPC server on this machine: placement, not a GPU's speed"]


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
