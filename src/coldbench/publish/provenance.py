"""Where every figure of a study comes from: what to have in hand to rebuild each cell."""

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from coldbench.analysis.study import gather
from coldbench.common.folders import expanded
from coldbench.common.hashing import file_sha256
from coldbench.records import FORMAT, PROTOCOL
from coldbench.study.lock import lock_path


def provenance(
    study: Path,
    *,
    models: dict[str, Any],
    builds: dict[str, Any],
    results: Path,
    receipts: Sequence[Path],
) -> dict[str, Any]:
    """Return the study file, models, builds, cells, machines and versions behind the results.

    Texts of the lock file and of patches are in it: together with the sources that are named by
    hash or commit, nothing else is needed to make the same programs and models again.
    """
    measured = gather(results, receipts)
    lock = lock_path(study)
    return {
        "study": {"file": str(study), "sha256": file_sha256(study), "text": study.read_text()},
        "lock": lock.read_text() if lock.exists() else None,
        "coldbench": {"commit": _commit(), "protocol": PROTOCOL, "record_format": FORMAT},
        "python": platform.python_version(),
        "packages": _packages(),
        "models": models,
        "builds": {name: _with_patches(build) for name, build in builds.items()},
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


def _packages() -> dict[str, str]:
    """Return the version of every package of this environment."""
    found = {one.name.lower(): one.version for one in metadata.distributions()}
    return dict(sorted(found.items()))


def _with_patches(build: dict[str, Any]) -> dict[str, Any]:
    """Add the patches' texts to a build's record; None for a patch that was edited since."""
    if "patches" not in build:
        return build
    return build | {"patches": [one | {"text": _patch_text(one)} for one in build["patches"]]}


def _patch_text(patch: dict[str, Any]) -> str | None:
    try:
        content = expanded(patch["path"]).read_bytes()
    except OSError:
        return None
    same = hashlib.sha256(content).hexdigest() == patch["sha256"]
    return content.decode(errors="replace") if same else None


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
