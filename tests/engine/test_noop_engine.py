"""Arms that do nothing, on the real engine: each is told, and its working sibling is not."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from coldbench.drivers.base import Output
from coldbench.drivers.registry import driver_for
from coldbench.measure import preflight
from coldbench.measure.delivery import Delivery, Printed, check
from coldbench.measure.host import host_facts
from coldbench.measure.journal import PlannedRun
from coldbench.measure.launcher import Launched, environment_for, launch
from coldbench.measure.native import launcher_program
from coldbench.measure.pagecache import evict, resident_bytes
from coldbench.records import CacheState, Residency, Run
from coldbench.study.specs import Arm
from coldbench.study.workloads import Workload

pytestmark = pytest.mark.engine

BATCHED = {
    "driver": "llama-batched-bench",
    "args": ["-npp", "512", "-ntg", "16", "-npl", "1", "-c", "1024", "-ub", "512", "-t", "2"],
}
BENCH = {"driver": "llama-bench", "args": ["-p", "128", "-n", "4", "-t", "2"]}
ATTEMPTS = 5
READS_AHEAD = {"cold": {"bounds": {"major_faults": "< 500"}}}
TABLE = "per_layer_token_embd"


@dataclass
class Outcome:
    """What became of one run: refused before it, or judged after it."""

    refused: str | None
    notes: list[str]
    delivery: Delivery
    run: Run | None

    @property
    def told(self) -> str:
        return self.refused or self.delivery.reason


@dataclass
class Engine:
    """One model with the demo's builds, on which arms are tried."""

    model: dict[str, Any]
    builds: dict[str, dict[str, Any]]
    launcher: Path
    folder: Path

    def try_arm(self, build: str, keys: dict[str, Any] = BATCHED, **arm_keys: Any) -> Outcome:
        arm = Arm.model_validate({"name": "tried", "build": build, **arm_keys})
        driven = TypeAdapter[Any](Workload).validate_python(keys)
        driver = driver_for(driven)
        program = self.builds[build]["programs"][driver.program(driven)]["path"]
        bare = environment_for({}, self.folder)
        args, refused, intended = preflight.resolved(arm, driven, Path(program), bare)
        environment = environment_for(arm.environment, self.folder)
        planned = PlannedRun(
            **dict.fromkeys(("block", "pass", "position"), 1),
            **dict.fromkeys(("run", "arm", "cell"), "tried"),
            build=build,
            state="cold",
            hashes={},
            argv=driver.argv(driven, program, self.model["path"], args),
            environment=environment,
        )
        early, notes = preflight.check(planned, arm, driven, bare, Path(self.model["path"]))
        if refused or early:
            return Outcome(early or refused, intended + notes, Delivery(), None)
        for _ in range(ATTEMPTS):
            launched, printed, after = self.launch(planned.argv, environment)
            result = driver.read(
                driven, Output(launched.exit, printed.stdout.encode(), printed.stderr)
            )
            if result.status != "void":
                break
        probe = driver.probe(driven, program, self.model["path"], args)
        record = run_record(planned, launched, after, self.model, result)
        return Outcome(
            None,
            intended + notes + result.notes,
            check(
                arm,
                driven,
                record,
                build=self.builds[build],
                model=self.model,
                measured=printed,
                probe=self.launch(probe, environment)[1] if probe else None,
            ),
            record,
        )

    def launch(
        self, argv: list[str], environment: dict[str, str]
    ) -> tuple[Launched, Printed, Residency]:
        files = [Path(file["path"]) for file in self.model["files"]]
        evict(files)
        stdout, stderr = self.folder / "out", self.folder / "err"
        launched = launch(
            self.launcher,
            argv,
            environment,
            stdout=stdout,
            stderr=stderr,
            time_limit_s=300,
            output_limit_bytes=2**24,
        )
        table = self.model["table"]
        after = Residency(
            files={file.name: resident_bytes(file) for file in files},
            table_bytes=resident_bytes(Path(table["file"]), table["offset"], table["bytes"]),
        )
        return launched, Printed(stdout.read_text(), stderr.read_text()), after


def run_record(
    planned: PlannedRun, launched: Launched, after: Residency, model: dict[str, Any], result: Any
) -> Run:
    state: CacheState = "cold"
    return Run(
        **planned.model_dump(by_alias=True, exclude={"state"}),
        study="no-op",
        model="gemma4",
        workload="tried",
        state=state,
        started=launched.started,
        host=host_facts(Path(model["path"])),
        status=result.status,
        reason=result.reason,
        effective=result.effective,
        memory=launched.memory,
        io=launched.io,
        loaded=None if launched.loaded is None else list(launched.loaded),
        after=after,
        table_total_bytes=model["table"]["bytes"],
    )


@pytest.fixture(scope="module")
def engine(
    demo_models: dict[str, dict[str, Any]],
    demo_builds: dict[str, dict[str, Any]],
    cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Engine:
    folder = tmp_path_factory.mktemp("noop")
    return Engine(demo_models["gemma4"], demo_builds, launcher_program(cache), folder)


@pytest.fixture(scope="module")
def no_advice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library in whose presence the kernel seems to refuse all advice on memory."""
    folder = tmp_path_factory.mktemp("advice")
    source = folder / "advice.c"
    source.write_text(
        "#include <errno.h>\n#include <stddef.h>\n"
        "int madvise(void *a, size_t n, int how) { errno = EINVAL; return -1; }\n"
        "int posix_madvise(void *a, size_t n, int how) { return EINVAL; }\n"
    )
    library = folder / "advice.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return library


@pytest.mark.parametrize(
    "args",
    [
        ["--lazy-mode", "on"],
        ["--lazy-mode", "off"],
        ["--lazy-mode", "on", "--load-mode", "none"],
        ["--lazy-mode", "off", "--load-mode", "none"],
        ["--lazy-mode", "off", "--load-mode", "mmap"],
        ["--lazy-mode", "off", "--load-mode", "mlock"],
        ["--lazy-mode", "off", "--load-mode", "mmap+mlock"],
        ["--lazy-mode", "off", "--load-mode", "dio"],
        ["--lazy-mode", "off", "-ot", rf"{TABLE}\.weight=CPU"],
        ["-ngl", "0"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("keys", [BATCHED, BENCH], ids=lambda keys: keys["driver"])
def test_a_treatment_in_force_is_seen(
    engine: Engine, keys: dict[str, Any], args: list[str]
) -> None:
    outcome = engine.try_arm("patched", keys, args=args)
    assert outcome.told == ""
    assert outcome.run is not None
    assert outcome.run.status == "ok"
    assert outcome.delivery.delivered["loaded files"]
    assert set(outcome.delivery.delivered.values()) == {True}
    assert len(outcome.delivery.delivered) > 2


def test_an_intent_reaches_the_engine(engine: Engine) -> None:
    outcome = engine.try_arm("patched", intent={"lazy": "on", "mmap": "off"})
    assert outcome.told == ""
    assert outcome.run is not None
    assert outcome.run.argv[-4:] == ["--lazy-mode", "on", "--load-mode", "none"]
    assert outcome.delivery.delivered["lazy on"]


def test_a_flag_that_this_build_does_not_have_is_refused(engine: Engine) -> None:
    outcome = engine.try_arm("patched", args=["--no-mmap"])
    assert outcome.refused is not None
    assert outcome.refused.startswith("build patched does not know --no-mmap")


def test_a_pattern_that_matches_nothing_is_refused(engine: Engine) -> None:
    outcome = engine.try_arm("patched", args=["-ot", "no_such_tensor=CPU"])
    assert outcome.refused is not None
    assert "pattern no_such_tensor matches 0 of" in outcome.refused


def test_a_pattern_on_a_lazily_read_tensor_moves_nothing(engine: Engine) -> None:
    outcome = engine.try_arm("patched", args=["-lzm", "on", "-ot", rf"{TABLE}\.weight=CPU"])
    assert outcome.told == (
        rf"-ot {TABLE}\.weight: expected tensors overridden to CPU, seen no tensor overridden "
        f"({TABLE}.weight is read lazily and stays where it is)"
    )


@pytest.mark.parametrize("keys", [BATCHED, BENCH], ids=lambda keys: keys["driver"])
def test_an_offload_without_a_device_is_not_delivered(engine: Engine, keys: dict[str, Any]) -> None:
    outcome = engine.try_arm("patched", keys, args=["-ngl", "99"])
    assert outcome.told.startswith("offloaded layers: expected 99 layers offloaded (or all), seen ")


def test_auto_below_its_threshold_is_as_off(engine: Engine) -> None:
    outcome = engine.try_arm("patched", args=["--lazy-mode", "auto"])
    assert outcome.told == (
        "lazy auto: expected a tensor read lazily, seen no tensor read lazily "
        "(auto leaves tensors up to 4 GiB as off does)"
    )


def test_lazy_reading_under_a_lock_of_all_is_no_lazy_reading(engine: Engine) -> None:
    outcome = engine.try_arm("patched", args=["-lzm", "on", "-lm", "mmap+mlock"])
    assert outcome.told.startswith("lazy table not locked: expected less than ")


def test_a_misspelt_variable_is_refused_with_the_nearest_name(engine: Engine) -> None:
    misspelt = {"LLAMA_ARG_LAZY_MOD": "on"}
    assert engine.try_arm("patched", environment=misspelt).refused == (
        "build patched reads no environment variable LLAMA_ARG_LAZY_MOD; "
        "did you mean LLAMA_ARG_LAZY_MODE?"
    )
    outcome = engine.try_arm("patched", environment={"LLAMA_ARG_LAZY_MODE": "on"})
    assert outcome.refused is None
    assert outcome.run is not None
    assert outcome.run.effective["lazy"] == [f"{TABLE}.weight"]


def test_a_patch_whose_code_is_not_reached_keeps_no_bound(engine: Engine) -> None:
    arm = {"args": ["--lazy-mode", "on"], "expect": READS_AHEAD}
    outcome = engine.try_arm("baseline", **arm)
    assert outcome.told.startswith("bound major_faults: expected < 500, seen ")
    # the engine's own words are no proof
    claims = {**arm, "expect": {"log": "enabling prefetch"}}
    assert engine.try_arm("baseline", **claims).told == ""
    assert engine.try_arm("patched", **arm).told == ""


def test_advice_that_the_kernel_refuses_is_not_delivered(engine: Engine, no_advice: Path) -> None:
    preloaded = {"LD_PRELOAD": str(no_advice)}
    outcome = engine.try_arm("patched", args=["-lzm", "on"], environment=preloaded)
    assert outcome.told.startswith("madvise: expected advice that the kernel takes, seen ")
    assert "failed: Invalid argument" in outcome.told


def test_another_build_s_program_is_not_this_one_s(engine: Engine) -> None:
    other = json.loads(json.dumps(engine.builds["baseline"]))
    swapped = Engine(engine.model, {"baseline": other}, engine.launcher, engine.folder)
    mine = other["programs"]["llama-batched-bench"]["path"]
    outcome = swapped.try_arm("baseline", args=["-lzm", "off"])
    assert outcome.told == ""
    assert outcome.run is not None
    assert mine in (outcome.run.loaded or [])
    foreign = engine.builds["patched"]["programs"]["llama-batched-bench"]["path"]
    run = outcome.run.model_copy(update={"loaded": [foreign]})
    delivery = check(
        Arm(name="a", build="baseline"),
        TypeAdapter[Any](Workload).validate_python(BATCHED),
        run,
        build=other,
        model=engine.model,
        measured=Printed("", ""),
        probe=None,
    )
    assert not delivery.delivered["loaded files"]
    assert f"seen {foreign}" in delivery.reason
