"""A stack of pins on the real engine: its rot, then the mended stack as an arm of the demo."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from coldbench.analysis.study import gather
from coldbench.cli import main
from coldbench.measure.block import Prepared, check_identity, measure_block
from coldbench.sources.builds import prepare_build
from coldbench.study.builds import Pin
from coldbench.study.plan import Plan
from coldbench.study.quiet import QuietSettings
from tests.unit.toy_repository import Repository

from .conftest import ROOT
from .engine_repository import Stack, engine_repository, rot

pytestmark = pytest.mark.engine

BENCH = "llama-batched-bench"
STACKED = {"stacked-lazy-on", "stacked-lazy-off"}
# Small, and on one thread: two wait for each other on a busy machine.
SMALL = "-npp 256 -ntg 8 -npl 1 -c 512 -b 256 -ub 256 -t 1"
NO_READAHEAD = {"cold": {"bounds": {"table_residency": "< 10%", "major_faults": "> 500"}}}


@pytest.fixture(scope="module")
def engine(demo: Plan, demo_builds: Any, cache: Path, tmp_path_factory: Any) -> Repository:
    """The released engine's source as a git repository."""
    source = demo.builds["patched"].source
    (archive,) = (cache / "downloads" / source.sha256).glob("*.tar.gz")
    return engine_repository(archive, source.subfolder, tmp_path_factory.mktemp("git") / "engine")


@pytest.fixture(scope="module")
def stack(engine: Repository) -> Stack:
    return rot(engine)


@pytest.fixture(scope="module")
def own_cache(cache: Path, tmp_path_factory: Any) -> Path:
    """A cache that shares only compiled objects with the user's, at another path."""
    folder = tmp_path_factory.mktemp("a cache") / "of its own"
    folder.mkdir()
    (folder / "ccache").symlink_to(cache / "ccache")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _this_cache(own_cache: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLDBENCH_CACHE", str(own_cache))
        yield


def study(engine: Repository, pins: list[Pin], folder: Path) -> Path:
    """Write the demo with one more build, the stack, beside the released engine alone."""
    yaml = YAML(typ="safe")
    demo = yaml.load(ROOT / "config" / "studies" / "demo.yaml")
    demo["models"] = {"gemma4": demo["models"]["gemma4"]}
    demo["builds"] = {
        "patched": demo["builds"]["patched"],
        "stacked": {
            "like": "patched",
            "source": {"git": {"url": str(engine.folder), "ref": "base"}},
            "pins": [pin.model_dump(mode="json", exclude_none=True) for pin in pins],
        },
    }
    demo["factors"]["lazy"]["on"]["expect"] = {"for_build": {"stacked": NO_READAHEAD}}
    demo["arms"] = {"matrix": {"build": ["patched", "stacked"], "lazy": ["on", "off"]}}
    demo["workloads"] = {
        "small": {"driver": BENCH, "args": SMALL.split()},
        "greedy": demo["workloads"]["greedy"] | {"tokens": "16", "args": ["-c", "256", "-t", "1"]},
    }
    demo["blocks"] = {"cold": 1}
    del demo["comparisons"]
    path = folder / "stack.yaml"
    yaml.dump(demo, path)
    return path


def test_one_run_names_all_that_is_rotten(
    engine: Repository, stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pins", str(study(engine, stack.rotten, tmp_path)), "--build"])
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert shown.startswith(f"Build stacked: base {stack.base}\n")
    found = re.findall(r"^- ([a-z ]+): (pin \d)", shown, re.MULTILINE)
    assert found == [
        ("conflict", "pin 2"),
        ("moved", "pin 1"),
        ("orphaned", "pin 1"),
        ("contained", "pin 3"),
        ("diverged", "pin 4"),
        ("does not compile", "pin 5"),
    ]
    assert re.search(r"pin 2 \(\w+\) clashes with pin 1 .*: src/llama-impl\.cpp \(conte", shown)
    assert f"was pushed over: the pin is not in it and stands at {stack.mended[0].commit}" in shown
    assert "2 of the 3 commits that it brings are not its own but of heads/fork" in shown
    assert "merges cleanly onto the base but does not compile: " in shown
    assert "llama-io.cpp:16:27: error: 'limited' was not declared in this scope" in shown


def test_the_base_is_the_release_whatever_its_path_and_commit(
    engine: Repository,
    stack: Stack,
    demo_builds: dict[str, dict[str, Any]],
    own_cache: Path,
    tmp_path: Path,
) -> None:
    """Its one commit more is of documentation: other trees, equal programs to the byte."""
    stacked = Plan(study(engine, stack.mended, tmp_path)).builds["stacked"]
    record = prepare_build("base", stacked.model_copy(update={"pins": ()}), own_cache)
    released = demo_builds["patched"]
    assert record["source"]["commit"] == stack.base
    assert record["base_tree"] == engine.git("rev-parse", "base^{tree}") != released["base_tree"]
    assert released["base_tree"] == engine.git("rev-parse", "release^{tree}")
    assert record["content"] == released["content"]
    assert record["programs"][BENCH]["path"] != released["programs"][BENCH]["path"]
    assert os.fsencode(own_cache) not in Path(record["programs"][BENCH]["path"]).read_bytes()


def test_the_mended_stack_is_one_more_arm(
    engine: Repository,
    stack: Stack,
    demo_models: dict[str, dict[str, Any]],
    demo_builds: dict[str, dict[str, Any]],
    own_cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = study(engine, stack.mended, tmp_path)
    main(["pins", str(path)])
    assert "Nothing is wrong with the stack." in capsys.readouterr().out
    plan = Plan(path)
    record = prepare_build("stacked", plan.builds["stacked"], own_cache)
    merged = record["source"]["merged"]
    assert record["tree"] == merged["tree"]
    assert [one["path"] for one in merged["changes"]] == [
        "src/llama-impl.cpp",
        "src/llama-io.cpp",
        "src/llama-memory.cpp",
    ]
    assert record["content"] != demo_builds["patched"]["content"]

    builds = {"patched": demo_builds["patched"], "stacked": record}
    results = tmp_path / "results"
    prepared = Prepared(demo_models["gemma4"], builds, own_cache, results)
    receipts = [results / "block.json", results / "identity.json"]
    block = plan.block("gemma4", "small", 1)
    measure_block(block, prepared, receipts[0], QuietSettings(quiet="warn"))
    check_identity(plan.identity("gemma4"), prepared, receipts[1])
    found = gather(results, receipts)
    last = {(run.workload, run.run): run for run in found.runs}
    assert {(run.status, run.reason) for run in last.values()} == {("ok", "")}
    faults = {run.arm: run.io.major_faults for run in last.values() if run.state == "cold"}
    # The first pin switches the readahead of lazily read rows off: proof that it is in force.
    assert faults["stacked-lazy-on"] > 500 > faults["patched-lazy-on"]
    assert faults.keys() > STACKED
    texts = {arm: cell.md5 for (_, arm), cell in found.identity.items()}
    assert texts.keys() >= {"patched-lazy-on", "patched-lazy-off", *STACKED}
    assert len(set(texts.values())) == 1
    assert {cell.reason for cell in found.identity.values()} == {""}
