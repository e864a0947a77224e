"""A hub of the test's own, and the real client turned towards it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from coldbench.sources import download
from coldbench.study.lock import Pins

from .server import HubServer


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _client(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point the library at the server: it reads the environment once, when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "hf" / "stored_tokens"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "WAIT_S", 0.01)
    # Nothing is timed here: do not wait for whoever measures on this machine.
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "machine.lock"))
    yield
    close_session()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return Pins(tmp_path / "toy.yaml", "models", "toy")


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    return tmp_path / "hf" / "hub"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on which a quarter of a MiB fits."""
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def read_only(disk: Path) -> None:
    """Let nobody write to `small_disk` any more."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
