"""The demo's arms on the real engine: lazy is lazy, read ahead is read ahead, text is the same."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from coldbench.analysis.identity import IdentityCell
from coldbench.analysis.study import gather
from coldbench.measure.block import Prepared, check_identity, measure_block
from coldbench.records import Run
from coldbench.study.plan import Plan
from coldbench.study.quiet import QuietSettings

pytestmark = pytest.mark.engine

MODELS = ("gemma4", "qwen4exp")
WARN = QuietSettings(quiet="warn")
BUILDS = ("baseline", "patched", "plain")


@pytest.fixture(scope="module")
def measured(
    demo: Plan,
    demo_models: dict[str, dict[str, Any]],
    demo_builds: dict[str, dict[str, Any]],
    cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[Run], pd.DataFrame, dict[tuple[str, str], IdentityCell]]:
    """One cold and one warm pass over all arms of the demo, and its identity check."""
    results = tmp_path_factory.mktemp("results")
    receipts = []
    for name in MODELS:
        prepared = Prepared(demo_models[name], demo_builds, cache, results)
        receipts += [results / f"{name}.json", results / f"{name}-identity.json"]
        measure_block(demo.block(name, "pp512-tg128", 1), prepared, receipts[-2], WARN)
        identity = demo.identity(name)
        assert identity is not None
        check_identity(identity, prepared, receipts[-1])
    found = gather(results, receipts)
    return found.runs, found.frame, found.identity


def figure(frame: pd.DataFrame, model: str, arm: str, metric: str, state: str = "cold") -> float:
    rows = frame.query(
        f"model == '{model}' and arm == '{arm}' and metric == '{metric}' and state == '{state}'"
    )
    (value,) = rows["value"]
    return float(value)


def test_every_run_is_ok(measured: Any) -> None:
    runs, _, _ = measured
    last = {(run.model, run.workload, run.run): run for run in runs}  # In the order of attempts.
    assert {(run.status, run.reason) for run in last.values()} == {("ok", "")}
    assert len(last) == 2 * (7 + 7 + 9)
    # Under load the engine now and then exits with its text unwritten: void, and made again.
    assert {run.status for run in runs} <= {"ok", "void"}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("build", ["baseline", "patched"])
def test_lazy_reads_a_fraction_and_holds_less_by_the_table(
    measured: Any, demo_models: Any, model: str, build: str
) -> None:
    _, frame, _ = measured
    lazy, eager = f"{build}-lazy-on", f"{build}-lazy-off"
    table = demo_models[model]["table"]["bytes"]
    read = {arm: figure(frame, model, arm, "read_bytes") for arm in (lazy, eager)}
    assert read[eager] >= 4 * read[lazy]
    rss = {arm: figure(frame, model, arm, "peak_rss_bytes") for arm in (lazy, eager)}
    assert rss[eager] - rss[lazy] == pytest.approx(table, rel=0.05)
    assert figure(frame, model, lazy, "table_residency") < 0.10
    assert figure(frame, model, eager, "table_residency") > 0.95


@pytest.mark.parametrize("model", MODELS)
def test_faults_prove_that_the_patched_build_reads_ahead(measured: Any, model: str) -> None:
    _, frame, _ = measured
    faults = {
        build: figure(frame, model, f"{build}-lazy-on", "major_faults")
        for build in ("baseline", "patched")
    }
    assert faults["baseline"] > 500
    assert faults["patched"] < 50


@pytest.mark.parametrize("model", MODELS)
def test_warm_runs_read_nothing(measured: Any, model: str) -> None:
    runs, _, _ = measured
    for run in runs:
        if run.model == model and run.state == "warm":
            assert run.io.read_bytes is not None
            # The kernel may begin one more window beside the pages that the priming run read.
            new = run.after.total_bytes - run.before.total_bytes
            assert new <= 1024 * run.host["disk_read_ahead_kb"]
            assert run.io.read_bytes - max(0, new) < 1_000_000


def test_the_log_shows_which_settings_were_in_force(measured: Any) -> None:
    runs, _, _ = measured
    for run in runs:
        lazy = "-lazy-on" in run.arm
        assert run.effective["lazy"] == (["per_layer_token_embd.weight"] if lazy else "off")


def test_all_arms_give_one_text_a_model(measured: Any, demo: Plan) -> None:
    _, _, identity = measured
    assert {cell.reason for cell in identity.values()} == {""}
    assert len(identity) == len(MODELS) * len(demo.arms)
    for model in MODELS:
        assert len({cell.md5 for (name, _), cell in identity.items() if name == model}) == 1
