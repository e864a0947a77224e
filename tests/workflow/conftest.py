"""The real workflow on a scripted engine, in a copy of the checkout."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).parent / "engine"
MODEL = ROOT / "tests" / "data" / "gguf" / "ok_v3.gguf"


@dataclass
class Checkout:
    """A copy of the repository that a test may run and change."""

    folder: Path
    environment: dict[str, str]

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def command(self, *arguments: str) -> list[str]:
        """Return `snakemake --cores all` as a user types it, with further arguments."""
        return [str(Path(sys.executable).with_name("snakemake")), "--cores", "all", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run the workflow to its end and return all it printed."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=240)
        assert (process.returncode != 0) is fails, output
        return output

    def study(self, study: dict[str, Any], name: str = "toy") -> str:
        """Write a study and return the setting that selects it."""
        path = self.folder / "config" / "studies" / f"{name}.yaml"
        YAML().dump(study, path)
        return f"study={name}"

    def records(self, study: str = "toy") -> list[dict[str, Any]]:
        """Return all journals' records, by file and in their order."""
        files = sorted((self.results / study / "raw").rglob("*.jsonl"))
        return [
            json.loads(line)
            for file in files
            if not file.name.endswith(".manifest.jsonl")
            for line in file.read_text().splitlines()
        ]

    def manifest(self, study: str = "toy") -> list[dict[str, Any]]:
        files = sorted((self.results / study / "raw").rglob("*.manifest.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def table(self, study: str = "toy") -> dict[str, dict[str, str]]:
        """Return the rows of the matrix by arm."""
        with (self.results / study / "matrix.csv").open() as stream:
            return {row["arm"]: row for row in csv.DictReader(stream)}

    def notes(self, study: str = "toy") -> list[str]:
        """Return the notes below the tables of the matrix."""
        lines = (self.results / study / "matrix.md").read_text().splitlines()
        return [line.replace("\\", "") for line in lines if line.startswith("- ")]


def program(path: Path, script: str) -> None:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)


def make_checkout(folder: Path, environment: dict[str, str]) -> Checkout:
    folder.mkdir(parents=True)
    for name in ("Snakefile", "workflow", "config", "profiles", "patches", "envs", "src"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    _bear_with(folder / "config" / "config.yaml")
    shutil.copytree(ENGINE, folder / "engine")
    shutil.copy2(MODEL, folder / "toy.gguf")
    return Checkout(folder, {**environment})  # a test may set its own


def _bear_with(config: Path) -> None:
    """Let runs count whatever else the machine does; tests of disturbance set their own limits."""
    settings = YAML().load(config)
    settings["quiet"] = "warn"
    settings["quiet_limits"] |= {
        "other_cpu": "99%",
        "stolen": "99%",
        "other_disk": "1TiB",
        "swapped_in": "1TiB",
        "throttled": 10**9,
    }
    YAML().dump(settings, config)


@pytest.fixture(scope="session")
def workflow_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The caller's environment, with a cache and a machine lock of the tests' own."""
    folder = tmp_path_factory.mktemp("cache")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SNAKEMAKE"))}
    return kept | {"COLDBENCH_CACHE": str(folder), "COLDBENCH_LOCK": str(folder / "lock")}


@pytest.fixture
def checkout(tmp_path: Path, workflow_environment: dict[str, str]) -> Checkout:
    return make_checkout(tmp_path / "checkout", workflow_environment)


@pytest.fixture
def checkout_called(
    tmp_path: Path, workflow_environment: dict[str, str]
) -> Callable[[str], Checkout]:
    return lambda name: make_checkout(tmp_path / name, workflow_environment)


@pytest.fixture
def toy() -> dict[str, Any]:
    """A study of two arms and their A/A pair on the scripted engine."""
    return {
        "models": {"toy": {"source": {"path": "toy.gguf"}}},
        "builds": {"stub": {"source": {"binaries": "engine"}}},
        "workloads": {
            "bench": {
                "driver": "llama-batched-bench",
                "args": ["-npp", "512", "-ntg", "128", "-npl", "1"],
                "time_limit": "20s",
            },
            "text": {"driver": "llama-completion", "prompt": "one two", "tokens": 16},
        },
        "arms": [
            {"name": "plain", "build": "stub"},
            {"name": "again", "aa_of": "plain"},
            {"name": "other", "build": "stub", "environment": {"STUB_SPEED": "2"}},
        ],
        "blocks": {"cold": 2, "warm": 1},
        "comparisons": {"claim": {"treatment": "other", "control": "plain"}},
        "identity": {"workload": "text", "mutant": "three four"},
    }
