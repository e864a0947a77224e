"""Hubs, servers and disks as nobody wants them: one clear line each, and no harm done."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from coldbench.common.errors import ColdbenchError
from coldbench.measure.pagecache import filesystem, resident_bytes
from coldbench.sources import hub
from coldbench.sources.models import prepare_model
from coldbench.study.lock import Pins, lock_path
from coldbench.study.models import Model

from .conftest import read_only
from .files import GOOD, changed, sha256, shards
from .server import HubServer

REPO = "someone/toy-GGUF"


def on_the_hub(**keys: Any) -> Model:
    return Model.model_validate({"source": {"hf": {"repo": REPO, "file": "toy.gguf", **keys}}})


def on_the_web(server: HubServer, content: bytes = GOOD) -> Model:
    server.files["toy.gguf"] = content
    return Model.model_validate(
        {"source": {"url": server.file_url("toy.gguf"), "sha256": sha256(content)}}
    )


def error_of(spec: Model, cache: Path, pins: Pins | None = None) -> str:
    with pytest.raises(ColdbenchError) as caught:
        prepare_model(spec, cache, pins)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>log in first</html>",
        b"",
        b"[]",
        b"17",
        b"null",
        b'{"id": 1}',
        b"[" * 100_000,
        b'{"id": "someone/toy-GGUF", "sha": "%s", "siblings": [{"rfilename": "toy.gguf"}]}'
        % (b"0" * 40),
        b'{"id": "someone/toy-GGUF", "sha": "%s", "siblings": 5}' % (b"0" * 40),
        b'{"id": "someone/toy-GGUF", "sha": "../../evil", "siblings": []}',
        b'{"id": "someone/toy-GGUF", "siblings": []}',
        b"\xff\xfe\x00",
    ],
)
def test_an_answer_that_makes_no_sense_is_told(
    server: HubServer, cache: Path, tmp_path: Path, answer: bytes
) -> None:
    server.api_answer = answer
    message = error_of(on_the_hub(), cache)
    assert message.startswith(f"{REPO}: ")
    assert "gave an answer that makes no sense" in message or "names no commit for main" in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]


def test_a_hub_that_says_nothing_is_given_up(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.api_silent.set()
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.2)
    assert f"{REPO}: {server.url} does not answer; try again later" in error_of(on_the_hub(), cache)


@pytest.mark.parametrize("size", [2**62, 10**30])
def test_a_size_that_no_disk_holds_is_refused(server: HubServer, cache: Path, size: int) -> None:
    server.api_answer = (
        b'{"id": "%s", "sha": "%s", "siblings": [{"rfilename": "toy.gguf", "size": 1, "lfs":'
        b' {"sha256": "%s", "size": %d, "pointerSize": 1}}]}'
    ) % (REPO.encode(), b"0" * 40, b"1" * 64, size)
    assert "of disk" in error_of(on_the_hub(), cache)
    assert server.bodies() == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"statuses": [403], "bare": True}, "the server wants another login (403)"),
        ({"statuses": [404], "bare": True}, "is not there (404); correct the address"),
        ({"statuses": [418], "bare": True}, "the server answers 418"),
        ({"loop": True}, "the server's redirects lead nowhere (TooManyRedirects)"),
        ({"announced": 10**17}, "needs 93132257.5 GiB of disk"),
        ({"announced": 10**30}, "the connection broke"),
    ],
)
def test_a_server_of_files_that_refuses_or_lies(
    server: HubServer, cache: Path, fault: dict[str, Any], words: str
) -> None:
    spec = on_the_web(server)
    server.fault("toy.gguf", **fault)
    assert words in error_of(spec, cache)
    server.faults.clear()
    assert prepare_model(spec, cache)["bytes"] == len(GOOD)


def test_a_content_network_that_goes_round_in_circles(server: HubServer, cache: Path) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.fault("toy.gguf", loop=True)
    assert "the server's redirects lead nowhere" in error_of(on_the_hub(), cache)


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("hubs", [False, True])
def test_a_file_that_is_replaced_under_way_is_fetched_from_the_start(
    server: HubServer, cache: Path, blind: bool, hubs: bool
) -> None:
    """A server that looks at If-Range sends all; of one that does not, the ETag tells."""
    spec = on_the_hub() if hubs else on_the_web(server)
    server.commit(REPO, {"toy.gguf": GOOD})
    etags = ['"old"', '"new"', '"new"']
    server.fault("toy.gguf", cut_after=100_000, cuts=1, blind=blind, etags=etags)
    record = prepare_model(spec, cache)
    assert record["files"][0]["sha256"] == sha256(GOOD)
    asked = [(one.range, one.headers.get("if-range")) for one in server.bodies()]
    assert asked == [(None, None), ("bytes=100000-", '"old"'), *([(None, None)] if blind else [])]


def test_storage_that_cannot_be_reached_is_not_needed(server: HubServer, cache: Path) -> None:
    """The hub offers its Xet storage; what it serves by plain HTTP is taken, and resumed."""
    server.commit(REPO, {"toy.gguf": GOOD})
    server.repos[REPO].xet = True
    server.fault("toy.gguf", cut_after=100_000, cuts=1)
    assert prepare_model(on_the_hub(), cache)["files"][0]["sha256"] == sha256(GOOD)
    assert [request.range for request in server.bodies()] == [None, "bytes=100000-"]
    assert not [request for request in server.requests if "xet" in request.path]


# --- what changed since the lock ----------------------------------------------------------------


def test_a_locked_commit_that_is_gone_is_named(server: HubServer, cache: Path, pins: Pins) -> None:
    commit = server.commit(REPO, {"toy.gguf": GOOD})
    hub.pinned(on_the_hub().source.hf, pins)  # type: ignore[union-attr]
    server.repos[REPO].commits.clear()
    assert f"has no branch, tag or commit {commit}" in error_of(on_the_hub(), cache, pins)


def test_a_lock_edited_by_hand_is_checked(server: HubServer, cache: Path, pins: Pins) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    record = prepare_model(on_the_hub(), cache, pins)
    lock = lock_path(pins.study)
    good = lock.read_text()
    for old, new, words in [
        (sha256(GOOD), "1" * 64, f"has sha256 {sha256(GOOD)}, toy.gguf of {REPO} has {'1' * 64}"),
        (f"size: {len(GOOD)}", "size: big", "models.toy.files.0.size"),
        ("name: toy.gguf", "name: other.gguf", "has no file other.gguf at"),
        ("models:", "modles:", "unknown key modles; did you mean models?"),
        ("models:", "models: [", "not valid YAML"),
    ]:
        assert old in good
        lock.write_text(good.replace(old, new))
        assert words in error_of(on_the_hub(), cache, pins)
    lock.write_text(good)
    assert prepare_model(on_the_hub(), cache, pins) == record


# --- disks --------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_under_way_is_named(
    server: HubServer, small_disk: Path, cache: Path
) -> None:
    spec = on_the_web(server)
    server.fault("toy.gguf", chunked=True)  # nobody knows how much will come
    message = error_of(spec, small_disk / "cache")
    assert message.startswith(str(small_disk))
    assert message.endswith("cannot be written: No space left on device")
    assert not list(small_disk.rglob("toy.gguf"))
    assert prepare_model(spec, cache)["bytes"] == len(GOOD)


def test_a_small_disk_is_refused_before_the_first_byte(
    server: HubServer, small_disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(small_disk / "hub"))
    message = error_of(on_the_hub(), cache)
    assert "1 file(s) needs 0.5 MiB of disk, 0.2 MiB are free" in message
    assert message.endswith("free some or set HF_HOME to another disk")
    assert "needs 0.5 MiB of disk" in error_of(on_the_web(server), small_disk / "cache")
    (part,) = small_disk.rglob(".part")  # a web server announces the size with its answer
    assert part.stat().st_size == 0


@pytest.mark.parametrize("place", ["hub", "cache"])
def test_a_cache_that_cannot_be_written_is_named(
    server: HubServer, small_disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    files = shards("toy", size=4096)
    server.commit(REPO, files)
    spec = on_the_hub(file=next(iter(files)))
    if place == "hub":
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(small_disk / "hub"))
    else:
        cache = small_disk / "cache"
    read_only(small_disk)
    message = error_of(spec, cache)
    assert message.startswith(str(small_disk))
    assert "Read-only file system" in message


def test_a_full_cache_that_is_read_only_will_do(
    server: HubServer, small_disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, pins: Pins
) -> None:
    files = shards("toy", size=4096)
    server.commit(REPO, files)
    spec = on_the_hub(file=next(iter(files)))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(small_disk / "hub"))
    record = prepare_model(spec, cache, pins)
    read_only(small_disk)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert prepare_model(spec, cache, pins) == record


# --- what is left in memory ---------------------------------------------------------------------


def test_neither_fetching_nor_hashing_leaves_a_model_in_the_page_cache(
    server: HubServer, cache: Path
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    if filesystem(cache.parent).type in {"tmpfs", "ramfs"}:
        pytest.skip("the tests' folder lives in memory")
    record = prepare_model(on_the_hub(), cache)
    path = Path(record["path"])
    assert resident_bytes(path) < len(GOOD) // 2  # its header was read last
    path.read_bytes()
    assert resident_bytes(path) == len(GOOD)
    for entry in (cache / "hashes").iterdir():
        entry.unlink()
    assert prepare_model(on_the_hub(), cache) == record
    assert resident_bytes(path) < len(GOOD) // 2


# --- progress -----------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Standard error where somebody looks."""

    def isatty(self) -> bool:
        return True


def test_who_looks_sees_the_progress(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    shown = Terminal()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", shown)
        prepare_model(on_the_hub(), cache)
    assert f"{REPO}: toy.gguf: 100%" in shown.getvalue()
    assert "541k/541k" in shown.getvalue()
    unseen = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", unseen)
        prepare_model(on_the_web(server), cache)
    assert "%" not in unseen.getvalue()


# --- several processes, and dead ones -----------------------------------------------------------

FETCH = """
import sys
from pathlib import Path
from coldbench.sources.models import prepare_model
from coldbench.study.models import Model
print(prepare_model(Model.model_validate_json(sys.argv[1]), Path(sys.argv[2]))["content"])
"""


@pytest.fixture
def fetching(
    server: HubServer, cache: Path, hub_cache: Path
) -> Iterator[Callable[[Model], subprocess.Popen[str]]]:
    """Start a process of its own that prepares a model."""
    started: list[subprocess.Popen[str]] = []

    def start(spec: Model) -> subprocess.Popen[str]:
        environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(hub_cache)}
        command = [sys.executable, "-c", FETCH, spec.model_dump_json(), str(cache)]
        started.append(
            subprocess.Popen(
                command,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("hubs", [True, False])
def test_killed_again_and_again_it_goes_on_where_it_was(
    server: HubServer,
    cache: Path,
    tmp_path: Path,
    hubs: bool,
    fetching: Callable[[Model], subprocess.Popen[str]],
) -> None:
    spec = on_the_hub() if hubs else on_the_web(server)
    server.commit(REPO, {"toy.gguf": GOOD})
    server.fault("toy.gguf", pause_s=0.1)
    left = [0]
    for least in (1, 200_000, 400_000):
        process = fetching(spec)
        while not (parts := [*tmp_path.rglob("*.incomplete"), *tmp_path.rglob(".part")]) or (
            parts[0].stat().st_size < least
        ):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left.append(parts[0].stat().st_size)
    server.faults.clear()
    assert prepare_model(spec, cache)["files"][0]["sha256"] == sha256(GOOD)
    asked = [request.range for request in server.bodies()]
    assert asked == [None, *(f"bytes={size}-" for size in left[1:])]
    assert left == sorted(left)
    assert not [*tmp_path.rglob("*.incomplete"), *tmp_path.rglob(".part")]


@pytest.mark.parametrize("hubs", [True, False])
def test_two_at_once_fetch_it_once(
    server: HubServer, hubs: bool, fetching: Callable[[Model], subprocess.Popen[str]]
) -> None:
    spec = on_the_hub() if hubs else on_the_web(server)
    server.commit(REPO, {"toy.gguf": GOOD})
    server.fault("toy.gguf", pause_s=0.1)
    both = [fetching(spec), fetching(spec)]
    contents = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert contents[0] == contents[1]
    assert len(server.bodies()) == 1


def test_a_file_that_was_taken_out_of_the_cache_is_fetched_anew(
    server: HubServer, cache: Path
) -> None:
    spec = on_the_web(server)
    record = prepare_model(spec, cache)
    Path(record["path"]).unlink()
    assert prepare_model(spec, cache)["content"] == record["content"]
    Path(record["path"]).write_bytes(changed(GOOD))
    again = prepare_model(spec, cache)
    assert again["content"] == record["content"]
    assert Path(again["path"]).read_bytes() == GOOD
    assert len(server.bodies()) == 3
