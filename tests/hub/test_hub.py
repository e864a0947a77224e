"""Models from a hub: the real client against the server here."""

import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from huggingface_hub import constants

from coldbench.common.errors import ColdbenchError
from coldbench.common.locks import machine
from coldbench.sources import download, hub
from coldbench.sources.models import Record, prepare_model
from coldbench.study.lock import Pins, lock_path, read_lock
from coldbench.study.models import Model

from .files import GOOD, changed, sha256, shards, with_readme
from .server import HubServer

REPO = "someone/toy-GGUF"


def model(**keys: Any) -> Model:
    return Model.model_validate({"source": {"hf": {"repo": REPO, **keys}}})


def prepared(spec: Model, cache: Path, pins: Pins | None = None) -> Record:
    return prepare_model(spec, cache, pins)


def error_of(spec: Model, cache: Path, pins: Pins | None = None) -> str:
    with pytest.raises(ColdbenchError) as caught:
        prepare_model(spec, cache, pins)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_branch_is_resolved_once_and_locked(
    server: HubServer, cache: Path, hub_cache: Path, pins: Pins
) -> None:
    commit = server.commit(REPO, with_readme({"toy-Q8_0.gguf": GOOD}))
    record = prepared(model(file="toy-Q8_0.gguf"), cache, pins)
    path = Path(record["path"])
    assert path.name == "toy-Q8_0.gguf"
    assert path.parent.name == commit
    assert path.is_relative_to(hub_cache)
    (file,) = record["files"]
    assert (file["sha256"], file["size"]) == (sha256(GOOD), len(GOOD))
    assert record["pin"]["commit"] == commit
    locked = read_lock(pins.study).models["toy"]
    assert locked.commit == commit
    assert locked.hf.revision == "main"
    assert [(f.name, f.size, f.sha256) for f in locked.files] == [
        ("toy-Q8_0.gguf", len(GOOD), sha256(GOOD))
    ]

    # The branch moves; the study does not.
    server.commit(REPO, with_readme({"toy-Q8_0.gguf": changed(GOOD)}))
    asked = len(server.requests)
    assert prepared(model(file="toy-Q8_0.gguf"), cache, pins) == record
    assert len(server.requests) == asked
    shutil.rmtree(hub_cache)
    again = prepared(model(file="toy-Q8_0.gguf"), cache, pins)
    assert again["content"] == record["content"]
    assert again["pin"] == record["pin"]
    assert server.leaks == []


def test_a_locked_study_runs_offline(
    server: HubServer, cache: Path, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, shards("q8/toy"))
    spec = model(pattern="q8/*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set and the lock does not say what main is" in error_of(
        spec, cache, pins
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    record = prepared(spec, cache, pins)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(server.requests)
    assert prepared(spec, cache, pins) == record
    shutil.rmtree(cache)
    assert prepared(spec, cache, pins) == record
    assert len(server.requests) == asked
    Path(record["files"][1]["path"]).unlink()
    message = error_of(spec, cache, pins)
    assert "toy-00002-of-00003.gguf is not in" in message
    assert "HF_HUB_OFFLINE is set" in message


def test_a_locked_lock_refuses_to_move(server: HubServer, cache: Path, pins: Pins) -> None:
    server.commit(REPO, {"a.gguf": GOOD, "b.gguf": GOOD})
    fixed = Pins(pins.study, "models", "toy", locked=True)
    message = error_of(model(file="a.gguf"), cache, fixed)
    assert message.startswith(f"{lock_path(pins.study)}: models.toy: is not there, and locked=true")
    assert not lock_path(pins.study).exists()
    assert server.requests == []
    prepared(model(file="a.gguf"), cache, pins)
    before = lock_path(pins.study).read_bytes()
    prepared(model(file="a.gguf"), cache, fixed)
    assert "is for another source than the study's" in error_of(model(file="b.gguf"), cache, fixed)
    assert lock_path(pins.study).read_bytes() == before
    prepared(model(file="b.gguf"), cache, pins)
    assert read_lock(pins.study).models["toy"].files[0].name == "b.gguf"


@pytest.mark.parametrize("asked", ["{}-00001-of-00003.gguf", "{}-00002-of-00003.gguf", None])
def test_a_split_model_is_one_model(
    server: HubServer, cache: Path, pins: Pins, asked: str | None
) -> None:
    files = shards("UD Q4/it's a -toy")
    name = "UD Q4/it's a -toy"
    server.commit(REPO, files | {"toy-Q2_K.gguf": GOOD})
    keys = {"pattern": "UD*"} if asked is None else {"file": asked.format(name)}
    record = prepared(model(**keys), cache, pins)
    assert Path(record["path"]).name == "it's a -toy-00001-of-00003.gguf"
    assert [file["sha256"] for file in record["files"]] == [sha256(one) for one in files.values()]
    assert record["bytes"] == sum(map(len, files.values()))
    assert record["tensors"] == 3
    assert [file["name"] for file in record["pin"]["files"]] == list(files)
    assert server.bodies("Q2_K") == []


def test_the_choice_of_a_model_is_explained(server: HubServer, cache: Path) -> None:
    files = shards("big/toy") | {"toy-Q2_K.gguf": GOOD, "toy-Q8_0.gguf": GOOD}
    del files["big/toy-00002-of-00003.gguf"]
    server.commit(REPO, files)
    assert "matches 2 models: toy-Q2_K.gguf, toy-Q8_0.gguf; narrow" in error_of(
        model(pattern="toy-*"), cache
    )
    message = error_of(model(pattern="*Q5*"), cache)
    assert "matches none of its 4 GGUF files; it has big/toy-00001-of-00003.gguf, toy" in message
    assert "has no file toy-Q8.gguf at main; did you mean toy-Q8_0.gguf?" in error_of(
        model(file="toy-Q8.gguf"), cache
    )
    assert "shard big/toy-00002-of-00003.gguf of big/toy-00001-of-00003.gguf is missing" in (
        error_of(model(pattern="big/*"), cache)
    )
    assert server.bodies() == []


def test_a_file_in_git_itself_is_hashed_here(server: HubServer, cache: Path, pins: Pins) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.repos[REPO].in_git.add("toy.gguf")
    record = prepared(model(file="toy.gguf"), cache, pins)
    assert record["files"][0]["sha256"] == sha256(GOOD)
    assert read_lock(pins.study).models["toy"].files[0].sha256 == sha256(GOOD)


def test_a_declared_hash_is_checked_before_the_download(server: HubServer, cache: Path) -> None:
    server.commit(REPO, shards("toy") | {"a.gguf": GOOD})
    message = error_of(model(file="a.gguf", sha256="0" * 64), cache)
    assert sha256(GOOD) in message
    assert "0" * 64 in message
    assert "this model has 3" in error_of(model(pattern="toy*", sha256="0" * 64), cache)
    assert server.bodies() == []
    assert prepared(model(file="a.gguf", sha256=sha256(GOOD)), cache)["bytes"] == len(GOOD)


# --- transfers that go wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"cut_after": 200_000, "cuts": 2},
        {"cut_after": 200_000, "cuts": 1, "ignore_range": True},
        {"cut_after": 200_000, "cuts": 1, "wrong_range": True},
        {"cut_after": 200_000, "cuts": 1, "etag": 'W/"weak"'},
        {"statuses": [429, 503], "retry_after": "0"},
        {"chunked": True},
    ],
)
def test_what_may_pass_is_tried_again(
    server: HubServer, cache: Path, fault: dict[str, Any]
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.fault("toy.gguf", **fault)
    record = prepared(model(file="toy.gguf"), cache)
    assert record["files"][0]["sha256"] == sha256(GOOD)
    if fault.get("cuts") == 2:
        ranges = [request.range for request in server.bodies()]
        assert ranges == [None, "bytes=200000-", "bytes=400000-"]
        assert server.sent_bytes == len(GOOD)
    assert not list(cache.parent.rglob("*.incomplete"))


def test_a_stopped_download_goes_on(
    server: HubServer, cache: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.fault("toy.gguf", cut_after=100_000)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    message = error_of(model(file="toy.gguf"), cache)
    assert "the connection broke" in message
    assert "100,000 bytes have arrived and are kept" in message
    (part,) = hub_cache.rglob("*.incomplete")
    assert part.stat().st_size == 100_000
    assert not list(hub_cache.rglob("toy.gguf"))
    server.faults.clear()
    prepared(model(file="toy.gguf"), cache)
    assert [request.range for request in server.bodies()] == [None, "bytes=100000-"]


def test_a_stale_part_is_dropped_once(server: HubServer, cache: Path, hub_cache: Path) -> None:
    commit = server.commit(REPO, {"toy.gguf": GOOD})
    blobs = hub_cache / "models--someone--toy-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{sha256(GOOD)}.coldbench.incomplete").write_bytes(b"other" * 1000)
    record = prepared(model(file="toy.gguf"), cache)
    assert record["files"][0]["sha256"] == sha256(GOOD)
    assert [request.range for request in server.bodies()] == ["bytes=5000-", None]
    assert commit in record["path"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"content": changed(GOOD)}, [sha256(changed(GOOD)), sha256(GOOD), "not kept"]),
        ({"announced": 1000}, ["announces 1,000 bytes, expected are 540,928"]),
        ({"announced": 10**6}, ["announces 1,000,000 bytes, expected are 540,928"]),
        ({"statuses": [500] * 9}, ["answers 500; 0 bytes have arrived"]),
        ({"statuses": [429] * 9, "retry_after": "0"}, ["the server limits requests (429)"]),
        ({"statuses": [403] * 9}, ["wants another login (403)"]),
    ],
)
def test_what_cannot_be_mended_is_told(
    server: HubServer, cache: Path, hub_cache: Path, fault: dict[str, Any], words: list[str]
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.fault("toy.gguf", **fault)
    message = error_of(model(file="toy.gguf"), cache)
    for word in words:
        assert word in message
    assert not list(hub_cache.rglob("toy.gguf"))
    server.faults.clear()
    assert prepared(model(file="toy.gguf"), cache)["bytes"] == len(GOOD)


def test_a_silent_server_is_given_up(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.fault("toy.gguf", pause_s=1.0)
    monkeypatch.setattr(download, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    assert "nothing came for" in error_of(model(file="toy.gguf"), cache)


def test_a_byte_changed_upstream_is_caught_and_the_good_copy_stays(
    server: HubServer, cache: Path, hub_cache: Path, pins: Pins, tmp_path: Path
) -> None:
    commit = server.commit(REPO, {"toy.gguf": GOOD})
    record = prepared(model(file="toy.gguf"), cache, pins)
    # The same commit has another file now: that must not be, and is not believed.
    server.repos[REPO].commits[commit]["toy.gguf"] = changed(GOOD)
    server.blobs[sha256(changed(GOOD))] = changed(GOOD)
    assert prepared(model(file="toy.gguf"), cache, pins) == record
    kept = tmp_path / "kept"
    hub_cache.rename(kept)
    message = error_of(model(file="toy.gguf"), cache, pins)
    assert sha256(GOOD) in message
    assert sha256(changed(GOOD)) in message
    assert server.bodies("toy.gguf")[1:] == []
    shutil.rmtree(hub_cache, ignore_errors=True)
    kept.rename(hub_cache)
    assert prepared(model(file="toy.gguf"), cache, pins) == record


def test_a_damaged_copy_is_told_with_both_hashes(
    server: HubServer, cache: Path, pins: Pins
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    record = prepared(model(file="toy.gguf"), cache, pins)
    blob = Path(record["files"][0]["path"])
    blob.chmod(0o644)
    blob.write_bytes(changed(GOOD))
    message = error_of(model(file="toy.gguf"), cache, pins)
    assert message.startswith(str(blob))
    assert sha256(changed(GOOD)) in message
    assert sha256(GOOD) in message
    blob.unlink()
    assert prepared(model(file="toy.gguf"), cache, pins)["content"] == record["content"]


def test_a_copied_cache_whose_blobs_were_left_behind_is_filled(
    server: HubServer, cache: Path, pins: Pins
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    record = prepared(model(file="toy.gguf"), cache, pins)
    Path(record["files"][0]["path"]).unlink()
    assert Path(record["path"]).is_symlink()
    assert prepared(model(file="toy.gguf"), cache, pins)["content"] == record["content"]


def test_too_small_a_disk_is_told_before_the_first_byte(server: HubServer, cache: Path) -> None:
    server.commit(REPO, shards("toy"))
    spec = model(pattern="toy*")
    pin = hub.pinned(spec.source.hf, None)  # type: ignore[union-attr]
    huge = [file.model_copy(update={"size": 2**58}) for file in pin.files]
    with pytest.raises(ColdbenchError, match=r"3 file\(s\) needs .* set HF_HOME to another disk"):
        hub.fetch(pin.model_copy(update={"files": tuple(huge)}), cache)
    assert server.bodies() == []


def test_another_process_that_fetches_is_waited_for(
    server: HubServer, cache: Path, hub_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    lock = hub_cache / ".locks" / "models--someone--toy-GGUF" / f"{sha256(GOOD)}.lock"
    lock.parent.mkdir(parents=True)
    caplog.set_level(logging.INFO)
    held = FileLock(lock)
    held.acquire()
    fetching = threading.Thread(target=prepared, args=(model(file="toy.gguf"), cache))
    fetching.start()
    try:
        deadline = time.monotonic() + 10
        while "waiting for another process" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
        assert f"it holds {lock}" in caplog.text
        assert server.bodies() == []
    finally:
        held.release()
        fetching.join(30)
    assert len(server.bodies()) == 1


def test_no_byte_is_fetched_or_hashed_beside_a_measurement(
    server: HubServer, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    caplog.set_level(logging.INFO)
    fetching = threading.Thread(target=prepared, args=(model(file="toy.gguf"), cache))
    with machine(alone=True, purpose="a measurement"):
        fetching.start()
        deadline = time.monotonic() + 60
        while "waiting for a measurement (process" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert server.bodies() == []
    with machine(alone=False, purpose="a build"):  # which may go on beside it
        fetching.join(60)
        assert not fetching.is_alive()
    assert len(server.bodies()) == 1


def test_a_cache_named_by_a_relative_path_holds_from_everywhere(
    server: HubServer, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, shards("toy"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "near/hub")
    record = prepared(model(pattern="toy*"), cache)
    monkeypatch.chdir("/")
    assert Path(record["path"]).is_relative_to(tmp_path / "near" / "hub")
    for file in record["files"]:
        assert sha256(Path(file["path"]).read_bytes()) == file["sha256"]
