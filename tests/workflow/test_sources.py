"""A study whose models come from a hub, the web and a stand-in: killed, resumed, then offline."""

import base64
import os
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
SPLIT = "someone/split-GGUF"
NOWHERE = "http://127.0.0.1:9"
MODELS_ONLY = ("--forcerun", "model", "--until", "model")


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.commit(REPO, {"toy-Q8_0.gguf": GOOD})
        server.commit(SPLIT, shards("big/toy"))
        server.repos[REPO].access = "private"
        server.repos[SPLIT].access = "gated"
        server.tokens = {TOKEN: {REPO, SPLIT}}
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
    }
    return make_checkout(tmp_path / "checkout", kept | own)


def study_of(hub: HubServer, toy: dict[str, Any]) -> dict[str, Any]:
    del toy["identity"], toy["workloads"]["text"], toy["arms"][1:]
    del toy["comparisons"]
    toy["blocks"] = {"cold": 1}
    toy["models"] = {
        "one": {"source": {"hf": {"repo": REPO, "file": "toy-Q8_0.gguf"}}},
        "split": {"source": {"hf": {"repo": SPLIT, "pattern": "big/*"}}},
        "web": {"source": {"url": hub.file_url("web.gguf"), "sha256": sha256(GOOD)}},
        "made": {"source": {"standin": {"architecture": "llama", "body": "16MiB"}}},
    }
    return toy


def assert_token_nowhere(hub: HubServer, folder: Path, said: str, but: Path | None = None) -> None:
    """Search everything below `folder` and everything printed for the token and for signatures.

    That is results, journals, logs, lock, provenance, Snakemake's own files and both caches.
    """
    assert any(TOKEN in one.headers.get("authorization", "") for one in hub.requests)  # it was used
    assert hub.leaks == []  # and given to the hub alone
    secrets = [TOKEN, base64.b64encode(TOKEN.encode()).decode().rstrip("="), SIGNATURE]
    files = [path for path in folder.rglob("*") if path.is_file() and path != but]
    found = {path.name for path in files}
    assert {"provenance.json", "matrix.md", "toy.lock.yaml", "one.log"} <= found
    assert any(".snakemake" in path.parts for path in files)
    for secret in secrets:
        assert secret not in said
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
        assert [path for path in folder.rglob("*") if secret in str(path)] == []


def test_models_are_fetched_resumed_locked_and_then_needed_no_more(
    fetching: Checkout, hub: HubServer, toy: dict[str, Any], tmp_path: Path
) -> None:
    setting = fetching.study(study_of(hub, toy))
    lock = fetching.folder / "config" / "studies" / "toy.lock.yaml"
    fetching.environment["HF_TOKEN"] = TOKEN

    said = fetching.run(*MODELS_ONLY, "--config", setting, "locked=true", fails=True)
    assert f"{lock}: models.one: is not there, and locked=true forbids to change it" in said
    assert not lock.exists()
    assert not hub.bodies("gguf?")  # nothing of the hub was fetched

    # Killed in the middle of a download; the same command goes on, and fetches the rest alone.
    hub.fault("toy-Q8_0.gguf", pause_s=0.25)
    process = fetching.start("--config", setting)
    deadline = time.monotonic() + 200
    unfinished = f"{sha256(GOOD)}*.incomplete"
    while not any(part.stat().st_size for part in (tmp_path / "hf").rglob(unfinished)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    said += process.communicate()[0]
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
    assert NOTHING in fetching.run("--config", setting, "--dry-run")

    # The hub moves on; then it is away. All models are looked at again, and nothing is measured.
    hub.commit(REPO, {"toy-Q8_0.gguf": changed(GOOD)})
    asked = len(hub.requests)
    fetching.environment |= {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": NOWHERE}
    before = lock.read_bytes()
    again = fetching.run("--forcerun", "model", "--config", setting, "locked=true")
    assert "model split" in again
    said += again
    assert lock.read_bytes() == before
    assert len(hub.requests) == asked
    assert fetching.records() == records

    # A byte changes upstream, behind the locked commit too: both hashes; the good copies stay.
    for files in hub.repos[REPO].commits.values():
        files["toy-Q8_0.gguf"] = changed(GOOD)
    hub.files["web.gguf"] = changed(GOOD)
    fetching.environment |= {
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "other" / "hf"),
        "COLDBENCH_CACHE": str(tmp_path / "other" / "cache"),
    }
    wrong = fetching.run(*MODELS_ONLY, "--keep-going", "--config", setting, fails=True)
    said += wrong
    errors = [line for line in wrong.splitlines() if " error: " in line]
    assert len(errors) == 2
    for error in errors:
        assert sha256(changed(GOOD)) in error
        assert sha256(GOOD) in error
    assert not list((tmp_path / "other").rglob("web.gguf"))
    assert not list((tmp_path / "other").rglob("toy-Q8_0.gguf"))
    (web,) = (tmp_path / "cache").rglob("web.gguf")
    (one,) = (tmp_path / "hf").rglob("toy-Q8_0.gguf")
    assert web.read_bytes() == one.read_bytes() == GOOD
    assert "Traceback" not in said

    assert_token_nowhere(hub, tmp_path, said)


def test_a_lock_entry_that_is_taken_out_is_made_anew(
    fetching: Checkout, hub: HubServer, toy: dict[str, Any], tmp_path: Path
) -> None:
    study = study_of(hub, toy)
    study["models"] = {"one": study["models"]["one"]}
    setting = fetching.study(study)
    token = tmp_path / "hf" / "token"  # where a login keeps it
    token.parent.mkdir()
    token.write_text(f"{TOKEN}\n")
    said = fetching.run("--config", setting)
    first = {record["cell"] for record in fetching.records()}
    hub.commit(REPO, {"toy-Q8_0.gguf": changed(GOOD)})
    lock = fetching.folder / "config" / "studies" / "toy.lock.yaml"

    lock.write_text("models: }{\n")
    nonsense = fetching.run("--config", setting, fails=True)
    assert f"{lock}:1: not valid YAML" in nonsense
    assert nonsense.count("not valid YAML") == 1

    lock.unlink()
    said += nonsense + fetching.run("--config", setting)
    assert hub.repos[REPO].branches["main"] in lock.read_text()
    second = {record["cell"] for record in fetching.records()} - first
    assert len(second) == len(first)  # other content, other cells
    assert NOTHING in fetching.run("--config", setting, "--dry-run")
    assert_token_nowhere(hub, tmp_path, said, but=token)
