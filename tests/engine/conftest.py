"""The real engine and real models, made once and kept in the user's cache as any study's are."""

from pathlib import Path
from typing import Any

import pytest

from coldbench.common.folders import cache_folder
from coldbench.sources.builds import prepare_build
from coldbench.sources.models import prepare_model
from coldbench.study.plan import Plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def demo() -> Plan:
    return Plan(ROOT / "config" / "studies" / "demo.yaml")


@pytest.fixture(scope="session")
def cache() -> Path:
    return cache_folder()


@pytest.fixture(scope="session")
def demo_builds(demo: Plan, cache: Path) -> dict[str, dict[str, Any]]:
    """The demo's three builds: records by name."""
    return {name: prepare_build(name, build, cache) for name, build in demo.builds.items()}


@pytest.fixture(scope="session")
def llama_binaries(demo_builds: dict[str, dict[str, Any]]) -> Path:
    """The folder of the released engine's programs."""
    return Path(demo_builds["patched"]["programs"]["llama-batched-bench"]["path"]).parent


@pytest.fixture(scope="session")
def demo_models(demo: Plan, cache: Path) -> dict[str, dict[str, Any]]:
    """The demo's stand-ins: records by name."""
    return {name: prepare_model(model, cache) for name, model in demo.models.items()}


@pytest.fixture(scope="session")
def smollm(cache: Path) -> Path:
    """A small real model."""
    study = Plan(ROOT / "config" / "studies" / "smollm2.yaml")
    return Path(prepare_model(study.models["smollm2"], cache)["files"][0]["path"])
