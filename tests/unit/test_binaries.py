"""Builds that are folders of ready programs."""

import signal
import subprocess
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.builds import check_build, prepare_build
from coldbench.study.builds import BinariesSource, Build


def ready(folder: Path) -> Build:
    return Build(source=BinariesSource(binaries=str(folder)))


def test_ready_binaries_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    stub = folder / "llama-bench"
    stub.write_text("#!/bin/sh\nkill -ILL $$\n")
    stub.chmod(0o755)
    (folder / "libx.so.1.2").write_text("library")
    (folder / "libx.so.1.2").chmod(0o755)
    (folder / "libx.so.1").symlink_to("libx.so.1.2")
    (folder / "readme").write_text("text")
    record = prepare_build("b", ready(folder), tmp_path / "cache")
    assert list(record["programs"]) == ["llama-bench"]
    assert sorted(record["libraries"]) == ["libx.so.1", "libx.so.1.2", "readme"]
    program = Path(record["programs"]["llama-bench"]["path"])
    assert program != stub
    assert program.read_bytes() == stub.read_bytes()
    assert subprocess.run([program]).returncode == -signal.SIGILL
    assert (program.parent / "libx.so.1").read_text() == "library"
    check_build(record)
    assert prepare_build("b", ready(folder), tmp_path / "cache") == record
    stub.write_text("#!/bin/sh\nexit 0\n")
    assert prepare_build("b", ready(folder), tmp_path / "cache")["content"] != record["content"]
    check_build(record)


def test_ready_binaries_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ColdbenchError, match=r"build b: folder of binaries .*/no does not exist"):
        prepare_build("b", ready(tmp_path / "no"), tmp_path / "cache")
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(ColdbenchError, match="holds no executable file"):
        prepare_build("b", ready(tmp_path), tmp_path / "cache")


def test_a_dangling_link_among_ready_binaries_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "llama-bench").symlink_to("/nonexistent/llama-bench")
    with pytest.raises(ColdbenchError, match=r"build b: .*programs/llama-bench: No such file"):
        prepare_build("b", ready(folder), tmp_path / "cache")
