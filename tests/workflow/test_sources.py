"""A study whose models come from a hub, the web and a stand-in: killed, resumed, then offline."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.hub.files import GOOD, changed, sha256, shards
from tests.hub.server import SIGNATURE, HubServer

from .conftest import Checkout, make_checkout
from .test_run import NOTHING

TOKEN = "hf_DoNotWriteThisAnywhere0123456789"
REPO = "someone/toy-GGUF"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.commit(REPO, {"toy-Q8_0.gguf": GOOD, **shards("big/toy")})
        server.repos[REPO].access = "private"
        server.tokens = {TOKEN: {REPO}}
        server.files["web.gguf"] = GOOD
        yield server


@pytest.fixture
def fetching(tmp_path: Path, hub: HubServer, workflow_environment: dict[str, str]) -> Checkout:
    """A checkout with caches of its own, and a hub."""
    kept = {
        key: value
        for key, value in workflow_environment.items()
        if not key.startswith(("HF_", "HUGGING")) and not key.lower().endswith("_proxy")
    }
    own = {
        "COLDBENCH_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
    }
    return make_checkout(tmp_path / "checkout", kept | own)


def study_of(hub: HubServer, toy: dict[str, Any]) -> dict[str, Any]:
    del toy["identity"], toy["workloads"]["text"], toy["arms"][2]
    del toy["comparisons"]
    toy["blocks"] = {"cold": 1}
    toy["models"] = {
        "one": {"source": {"hf": {"repo": REPO, "file": "toy-Q8_0.gguf"}}},
        "split": {"source": {"hf": {"repo": REPO, "pattern": "big/*"}}},
        "web": {"source": {"url": hub.file_url("web.gguf"), "sha256": sha256(GOOD)}},
        "made": {"source": {"standin": {"architecture": "llama", "body": "16MiB"}}},
    }
    return toy


def test_models_are_fetched_resumed_locked_and_then_needed_no_more(
    fetching: Checkout, hub: HubServer, toy: dict[str, Any], tmp_path: Path
) -> None:
    setting = fetching.study(study_of(hub, toy))
    lock = fetching.folder / "config" / "studies" / "toy.lock.yaml"

    refused = fetching.run("--config", setting, "locked=true", fails=True)
    assert f"{lock}: models.one: is not there, and locked=true forbids to change it" in refused
    assert not lock.exists()

    hub.fault("toy-Q8_0.gguf", pause_s=0.25)
    process = fetching.start("--config", setting)
    deadline = time.monotonic() + 90
    unfinished = f"{sha256(GOOD)}*.incomplete"
    while not any(part.stat().st_size for part in (tmp_path / "hf").rglob(unfinished)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    said = process.communicate()[0]
    hub.faults.clear()
    (part,) = (tmp_path / "hf").rglob(unfinished)
    arrived = part.stat().st_size
    assert 0 < arrived < len(GOOD)

    said += fetching.run("--config", setting)
    assert [request.range for request in hub.bodies("Q8_0")] == [None, f"bytes={arrived}-"]
    locked = YAML(typ="safe").load(lock)
    assert [len(entry["files"]) for entry in locked["models"].values()] == [1, 3]
    assert locked["models"]["one"]["commit"] == hub.repos[REPO].branches["main"]
    records = fetching.records()
    assert {record["model"] for record in records} == {"one", "split", "web", "made"}
    assert {record["status"] for record in records} == {"ok"}
    split = next(record for record in records if record["model"] == "split")
    assert len(split["before"]["files"]) == 3
    assert set(split["before"]["files"].values()) == {0}  # evicted as one
    for _ in range(2):
        assert NOTHING in fetching.run("--config", setting, "--dry-run")

    # The hub moves on; then it is away. All models are looked at again.
    hub.commit(REPO, {"toy-Q8_0.gguf": changed(GOOD)})
    asked = len(hub.requests)
    fetching.environment |= {"HF_HUB_OFFLINE": "1"}
    before = lock.read_bytes()
    again = fetching.run("--forcerun", "model", "--config", setting, "locked=true")
    assert "model split" in again
    said += again
    assert lock.read_bytes() == before
    assert len(hub.requests) == asked
    assert fetching.records() == records

    # The token was used, and is nowhere.
    assert any("authorization" in request.headers for request in hub.requests)
    assert hub.leaks == []
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert TOKEN.encode() not in content, path
            assert SIGNATURE.encode() not in content, path
    assert TOKEN not in said
    assert SIGNATURE not in said

    # A byte changes upstream: both hashes, and the good copies stay.
    fetching.environment |= {"HF_HUB_OFFLINE": "0", "COLDBENCH_CACHE": str(tmp_path / "other")}
    hub.files["web.gguf"] = changed(GOOD)
    shutil.rmtree(fetching.results)
    said = fetching.run("--config", setting, fails=True)
    assert sha256(changed(GOOD)) in said
    assert sha256(GOOD) in said
    assert not list((tmp_path / "other").rglob("web.gguf"))
    (good,) = (tmp_path / "cache").rglob("web.gguf")
    assert good.read_bytes() == GOOD


def test_a_lock_entry_that_is_taken_out_is_made_anew(
    fetching: Checkout, hub: HubServer, toy: dict[str, Any]
) -> None:
    study = study_of(hub, toy)
    study["models"] = {"one": study["models"]["one"]}
    setting = fetching.study(study)
    fetching.run("--config", setting)
    assert NOTHING in fetching.run("--config", setting, "--dry-run")
    first = {record["cell"] for record in fetching.records()}
    hub.commit(REPO, {"toy-Q8_0.gguf": changed(GOOD)})
    lock = fetching.folder / "config" / "studies" / "toy.lock.yaml"
    lock.unlink()
    fetching.run("--config", setting)
    assert hub.repos[REPO].branches["main"] in lock.read_text()
    second = {record["cell"] for record in fetching.records()} - first
    assert len(second) == len(first)  # other content, other cells
    assert NOTHING in fetching.run("--config", setting, "--dry-run")
