"""Models from the web: resumed, verified, contained."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from coldbench.common import folders
from coldbench.common.errors import ColdbenchError
from coldbench.sources import download
from coldbench.sources.models import prepare_model
from coldbench.sources.url import file_name
from coldbench.study.models import Model
from tests.unit.gguf_files import DATA

from .files import GOOD, changed, sha256
from .server import HubServer


def at(server: HubServer, name: str = "toy.gguf", content: bytes = GOOD) -> Model:
    server.files.setdefault(name, content)
    return named(server.file_url(name), sha256(content))


def named(url: str, digest: str = "0" * 64) -> Model:
    return Model.model_validate({"source": {"url": url, "sha256": digest}})


def error_of(spec: Model, cache: Path) -> str:
    with pytest.raises(ColdbenchError) as caught:
        prepare_model(spec, cache)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_is_fetched_once(server: HubServer, cache: Path) -> None:
    record = prepare_model(at(server), cache)
    path = Path(record["path"])
    assert path.name == "toy.gguf"
    assert path.is_relative_to(cache / "models")
    assert record["files"][0]["sha256"] == sha256(GOOD)
    assert record["pin"] is None
    server.files.clear()
    assert prepare_model(named(server.file_url("toy.gguf"), sha256(GOOD)), cache) == record
    assert len(server.bodies()) == 1


@pytest.mark.parametrize(
    ("fault", "ranges"),
    [
        ({"cut_after": 300_000, "cuts": 1}, [None, "bytes=300000-"]),
        (
            {"cut_after": 300_000, "cuts": 1, "ignore_range": True},
            [None, "bytes=300000-"],
        ),
        (
            {"cut_after": 300_000, "cuts": 1, "wrong_range": True},
            [None, "bytes=300000-", None],
        ),
        ({"announced": 10**6}, [None]),  # the hash says that it was all
        ({"statuses": [503, 429, 408], "retry_after": "0"}, [None] * 4),
        ({"chunked": True}, [None]),
    ],
)
def test_broken_transfers(
    server: HubServer, cache: Path, fault: dict[str, Any], ranges: list[str | None]
) -> None:
    spec = at(server)
    server.fault("toy.gguf", **fault)
    record = prepare_model(spec, cache)
    assert record["files"][0]["sha256"] == sha256(GOOD)
    assert [request.range for request in server.bodies()] == ranges


@pytest.mark.parametrize("ignoring", [False, True])
def test_what_an_earlier_run_left_is_used_or_dropped(
    server: HubServer, cache: Path, ignoring: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = at(server)
    server.fault("toy.gguf", cut_after=50_000)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    assert "50,000 bytes have arrived and are kept" in error_of(spec, cache)
    (part,) = cache.rglob(".part")
    left = part.stat().st_size
    assert left == 50_000
    assert not list(cache.rglob("toy.gguf"))
    server.fault("toy.gguf", ignore_range=ignoring)
    sent = server.sent_bytes
    assert prepare_model(spec, cache)["bytes"] == len(GOOD)
    assert server.sent_bytes - sent == (len(GOOD) if ignoring else len(GOOD) - left)
    assert not list(cache.rglob(".part"))


def test_a_part_of_another_file_costs_one_new_start(server: HubServer, cache: Path) -> None:
    spec = at(server)
    server.fault("toy.gguf", statuses=[404])
    error_of(spec, cache)
    (folder,) = (cache / "models").iterdir()
    (folder / ".part").write_bytes(changed(GOOD)[-5000:])
    assert prepare_model(spec, cache)["files"][0]["sha256"] == sha256(GOOD)
    (folder / "toy.gguf").unlink()
    (folder / ".part").write_bytes(GOOD + b"and more")
    assert prepare_model(spec, cache)["files"][0]["sha256"] == sha256(GOOD)
    (folder / "toy.gguf").unlink()
    (folder / ".part").write_bytes(GOOD)
    asked = len(server.bodies())
    assert prepare_model(spec, cache)["files"][0]["sha256"] == sha256(GOOD)
    assert len(server.bodies()) == asked


def test_another_file_than_declared_is_told_with_both_hashes(
    server: HubServer, cache: Path
) -> None:
    good = prepare_model(at(server), cache)
    server.files["toy.gguf"] = changed(GOOD)
    # The study's hash still names the good copy, which is here: nothing is fetched.
    assert prepare_model(at(server), cache) == good
    spec = named(server.file_url("toy.gguf"), "0" * 64)
    message = error_of(spec, cache)
    assert sha256(changed(GOOD)) in message
    assert "0" * 64 in message
    assert len(server.bodies()) == 2
    assert Path(good["path"]).read_bytes() == GOOD
    shutil.rmtree(cache)
    assert sha256(changed(GOOD)) in error_of(at(server), cache)
    assert not list(cache.rglob("toy.gguf"))
    assert not list(cache.rglob(".part"))
    server.files["toy.gguf"] = GOOD
    assert prepare_model(at(server), cache)["content"] == good["content"]


def test_less_announced_than_there_is_never_gets_the_name(server: HubServer, cache: Path) -> None:
    spec = at(server)
    server.fault("toy.gguf", announced=440_928)
    message = error_of(spec, cache)
    assert "(440,928 bytes)" in message
    assert "needs 540,928 bytes, has 440,928: incomplete download?" in message
    assert not list(cache.rglob("toy.gguf"))


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("html_page.gguf", "this is an HTML page; use the raw/resolve link"),
        ("lfs_pointer.gguf", "this is a Git LFS pointer for a file of 2,063,597,568 bytes"),
        ("empty.gguf", "empty file"),
        ("truncated_data.gguf", "needs 540,928 bytes, has 440,928"),
    ],
)
def test_what_came_instead_is_told(server: HubServer, cache: Path, sample: str, words: str) -> None:
    server.files["toy.gguf"] = (DATA / sample).read_bytes()
    message = error_of(named(server.file_url("toy.gguf"), sha256(GOOD)), cache)
    assert words in message
    assert sha256(GOOD) in message


def test_what_is_refused_or_absent_is_told(server: HubServer, cache: Path) -> None:
    gone = error_of(named(server.file_url("absent.gguf")), cache)
    assert gone == f"{server.file_url('absent.gguf')}: is not there (404); correct the address"
    away = error_of(named("http://127.0.0.1:9/toy.gguf"), cache)
    assert "cannot be reached" in away
    assert "is this machine offline, or the proxy wrong?" in away


def test_too_small_a_disk_is_told_before_the_first_byte(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = at(server)
    usage = shutil.disk_usage(cache.parent)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    message = error_of(spec, cache)
    assert "needs 0.5 MiB of disk, 0.0 MiB are free" in message
    (part,) = cache.rglob(".part")
    assert part.stat().st_size == 0


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/toy.gguf", "toy.gguf"),
        ("a/..%2F..%2Fevil.gguf", "_._.._evil.gguf"),
        ("a/%2Fetc%2Fpasswd", "_etc_passwd"),
        ("..", "model.gguf"),
        ("a/%2e%2e", "model.gguf"),
        ("", "model.gguf"),
        ("a/-rf.gguf", "-rf.gguf"),
        ("a/it's%20%22a%22.gguf", 'it\'s "a".gguf'),
        ("a/.lock", "_lock"),
        ("a/.part", "_part"),
        ("a/b%00c%0A.gguf", "b_c_.gguf"),
        ("a/" + "x" * 400 + ".gguf", "x" * 175 + ".gguf"),
        ("a/toy.gguf?download=true#part", "toy.gguf"),
    ],
)
def test_names_stay_in_their_folder(path: str, name: str) -> None:
    assert file_name(f"https://example.org/{path}") == name


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.org/a.gguf", "must be an https address"),
        ("file:///etc/passwd", "must be an https address"),
        ("https:///a.gguf", "must be an https address"),
        ("https://user:secret@example.org/a.gguf", "must not hold secrets"),
        ("https://example.org/a.gguf?X-Amz-Signature=1", "is signed or has a token"),
        ("https://example.org/a.gguf?x=1&access_token=1", "is signed or has a token"),
        ("https://example.org:port/a.gguf", "is no web address"),
        ("https://example.org/a-00001-of-00003.gguf", "one shard of a split model"),
    ],
)
def test_addresses_that_no_study_should_have(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        named(url)
