"""All tests: a machine lock of their own, so that they neither wait for a study nor hold one up."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _machine_lock(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("lock")
    os.environ["COLDBENCH_LOCK"] = str(folder / "machine.lock")
