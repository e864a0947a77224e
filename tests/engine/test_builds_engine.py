"""The demo's three builds of the real engine, in the user's cache (minutes when it is empty)."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from coldbench.sources.builds import check_build

pytestmark = pytest.mark.engine
BENCH = "llama-batched-bench"


def test_each_build_is_recorded_in_full(demo_builds: dict[str, dict[str, Any]]) -> None:
    for record in demo_builds.values():
        check_build(record)
        assert record["source"]["pypi"] == "llama-cpp-python==0.3.36"
        assert record["source"]["commit"]
        assert record["unused_cmake"] == []
        assert Path(record["log"]).stat().st_size > 0
    trees = {name: [patch["tree"] for patch in one["patches"]] for name, one in demo_builds.items()}
    assert trees["patched"] == []
    assert len(trees["baseline"]) == 1
    assert len(trees["plain"]) == 2
    # The first patch of both is the same one on the same source.
    assert trees["plain"][0] == trees["baseline"][0]
    assert len({record["tree"] for record in demo_builds.values()}) == 3
    assert len({record["base_tree"] for record in demo_builds.values()}) == 1


def test_each_patch_reaches_the_programs(demo_builds: dict[str, dict[str, Any]]) -> None:
    assert len({record["programs"][BENCH]["sha256"] for record in demo_builds.values()}) == 3
    assert len({record["content"] for record in demo_builds.values()}) == 3
    assert len({len(record["programs"][BENCH]["path"]) for record in demo_builds.values()}) == 1


def test_each_program_runs(demo_builds: dict[str, dict[str, Any]]) -> None:
    for record in demo_builds.values():
        for program in record["programs"].values():
            shown = subprocess.run([program["path"], "--version"], capture_output=True, text=True)
            assert shown.returncode == 0
            assert record["source"]["commit"] in shown.stdout + shown.stderr
