"""Layers offloaded to the engine's own RPC server: the body moves there, a lazy table stays."""

from pathlib import Path
from typing import Any

import pytest

from coldbench.measure.block import Prepared, measure_block
from coldbench.measure.journal import read_runs
from coldbench.records import Run
from coldbench.sources.builds import prepare_build
from coldbench.sources.models import prepare_model
from coldbench.study.plan import Plan
from coldbench.study.quiet import QuietSettings

pytestmark = pytest.mark.engine

MIB = 2**20
ROOT = Path(__file__).parents[2]
WARN = QuietSettings(quiet="warn")
ARMS = ("ngl-all-lazy-on", "ngl-all-lazy-off")


@pytest.fixture(scope="module")
def offload() -> Plan:
    return Plan(ROOT / "config" / "studies" / "offload.yaml")


@pytest.fixture(scope="module")
def model(offload: Plan, cache: Path) -> dict[str, Any]:
    return prepare_model(offload.models["gemma4"], cache)


@pytest.fixture(scope="module")
def runs(
    offload: Plan,
    model: dict[str, Any],
    cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Run]:
    """One cold run of each arm with all layers offloaded; the last attempt of each."""
    results = tmp_path_factory.mktemp("results")
    build = prepare_build("device", offload.builds["device"], cache)
    assert set(build["programs"]) >= {"llama-batched-bench", "ggml-rpc-server"}
    spec = offload.block("gemma4", "bench", 1)
    spec = spec.model_copy(update={"arms": tuple(a for a in spec.arms if a.name in ARMS)})
    prepared = Prepared(model, {"device": build}, cache, results)
    measure_block(spec, prepared, results / "receipt.json", WARN)
    return {run.arm: run for run in read_runs(results / "raw/gemma4/bench/block-001.jsonl")}


def buffers(run: Run) -> dict[str, float]:
    """Return the sizes in MiB of the buffers."""
    return dict(run.effective["buffers"])


def test_both_are_delivered_with_all_layers_on_the_server(runs: dict[str, Run]) -> None:
    assert set(runs) == set(ARMS)
    for run in runs.values():
        assert (run.status, run.reason) == ("ok", "")
        assert run.delivered["offloaded layers"] is True
        offloaded, total = run.effective["offloaded"].split("/")
        assert offloaded == total
        assert set(run.metrics) == {"prompt_tps", "generation_tps"}
        assert run.argv[run.argv.index("--rpc") + 1] == "{rpc}"  # the address is a run's own


def test_a_lazily_read_table_stays_mapped_beside_the_server_s_buffer(
    runs: dict[str, Run], model: dict[str, Any]
) -> None:
    table = model["table"]["bytes"] / MIB
    body = model["bytes"] / MIB - table
    lazy, eager = (buffers(runs[arm]) for arm in ARMS)
    assert runs[ARMS[0]].effective["lazy"] == ["per_layer_token_embd.weight"]
    assert lazy["CPU_Mapped"] >= table
    assert runs[ARMS[1]].effective["lazy"] == "off"
    for found in (lazy, eager):
        # Of the body, the token embeddings stay with the engine.
        assert body / 2 < found["RPC0"] < body


def test_the_server_holds_the_layers_in_memory_of_its_own(
    runs: dict[str, Run], model: dict[str, Any]
) -> None:
    body = model["bytes"] - model["table"]["bytes"]
    for run in runs.values():
        peak = run.memory.server_peak_rss_bytes
        assert peak is not None
        assert body < peak < body + 256 * MIB


def test_a_lazy_table_is_neither_read_nor_held_when_all_else_is_offloaded(
    runs: dict[str, Run], model: dict[str, Any]
) -> None:
    lazy, eager = (runs[arm] for arm in ARMS)
    assert lazy.io.read_bytes is not None
    assert eager.io.read_bytes is not None
    assert lazy.after.table_bytes is not None
    assert eager.io.read_bytes > model["bytes"] * 0.95
    assert lazy.io.read_bytes < eager.io.read_bytes - model["table"]["bytes"] / 2
    assert lazy.after.table_bytes < model["table"]["bytes"] / 10
    assert lazy.memory.peak_rss_bytes is not None
    assert eager.memory.peak_rss_bytes is not None
    held = eager.memory.peak_rss_bytes - lazy.memory.peak_rss_bytes
    assert held > 0.9 * model["table"]["bytes"]
