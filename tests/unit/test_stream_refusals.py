"""The stream kernel where its feed, its file, the machine or its use is wrong."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from .stream_kernel import MIB, ROW, Weights, argv, call, result, write_feed


def unsupported(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 3, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found["unsupported"]


def test_a_budget_below_two_buffers_is_unsupported(stream: Path, weights: Weights) -> None:
    done = call(stream, weights, "scheduled", "--budget", str(40 * MIB))
    assert "is below 2 buffers of 12" in unsupported(done)
    done = call(stream, weights, "direct", "--budget", str(8 * MIB))
    assert "does not hold a buffer" in unsupported(done)


def test_a_filesystem_without_direct_reads_is_unsupported(stream: Path, weights: Weights) -> None:
    shared = Path("/dev/shm") / f"stream-{os.getpid()}.gguf"
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs here")
    try:
        shared.write_bytes(bytes(ROW * 3))
        feed = weights.feed.with_name("shared")
        write_feed(feed, ((0, 0, ROW * 3, shared),))
        done = call(stream, Weights(shared, feed, ()), "direct")
        assert "has no O_DIRECT" in unsupported(done)
        done = call(stream, Weights(shared, feed, ()), "mmap")
        assert done.returncode == 0
    finally:
        shared.unlink()


def test_a_kernel_that_collapses_no_files_is_unsupported_and_one_that_does_exact(
    stream: Path, weights: Weights, expected: list[str]
) -> None:
    done = call(stream, weights, "mmap+collapse")
    if done.returncode == 3:
        assert "MADV_COLLAPSE" in unsupported(done)
    else:
        assert result(done)["checksums"] == expected


def test_a_file_shorter_than_the_feed_says_is_refused(stream: Path, tmp_path: Path) -> None:
    model, feed = tmp_path / "m.gguf", tmp_path / "layers"
    model.write_bytes(bytes(5000))
    write_feed(feed, ((0, 0, 4000, model), (1, 4000, 1001, model)))
    for policy in ("mmap", "scheduled", "read"):
        done = call(stream, Weights(model, feed, ()), policy)
        assert (done.returncode, done.stdout) == (1, "")
        assert "holds 5000 bytes, but the feed's line 3 wants 1001 bytes at 4000" in done.stderr


def test_a_file_shortened_while_it_is_mapped_is_one_clear_line(
    stream: Path, tmp_path: Path
) -> None:
    model, feed = tmp_path / "m.gguf", tmp_path / "layers"
    model.write_bytes(bytes(32 * MIB))
    write_feed(feed, ((0, 0, 32 * MIB, model),))
    command = [*argv(stream, Weights(model, feed, ()), "mmap"), "--tokens", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    os.truncate(model, ROW)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "SIGBUS" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "does not begin with"),
        ("CBLAYERS1 1 1\n", "promises 1 layers in 1 ranges"),
        ("CBLAYERS1 1 1\n0 0 0 m.gguf\n", "no bytes"),
        ("CBLAYERS1 1 1\n0 0 9\n", "line 2 is not"),
        ("CBLAYERS1 1 1\n0 0 9 other/m.gguf\n", "line 2 is not"),
        ("CBLAYERS1 2 1\n1 0 9 m.gguf\n", "layers count up from 0"),
        ("CBLAYERS1 1 1\n0 0 9 none.gguf\n", "No such file"),
        ("CBLAYERS1 1 1\n0 -1 9 m.gguf\n", "line 2 is not"),
    ],
)
def test_a_broken_feed_is_named(stream: Path, tmp_path: Path, text: str, line: str) -> None:
    model, feed = tmp_path / "m.gguf", tmp_path / "layers"
    model.write_bytes(bytes(ROW))
    feed.write_text(text)
    done = call(stream, Weights(model, feed, ()), "mmap")
    assert (done.returncode, done.stdout) == (1, "")
    assert line in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("mmap+sequential+random",),
        ("mmap+willneed+willneed",),
        ("mmap+nonsense",),
        ("mmapped",),
        ("scheduled", "--buffers", "1"),
        ("scheduled", "--read-size", "5000"),
        ("scheduled", "--piece", "4096"),
        ("scheduled", "extra"),
        ("mmap", "--tokens", "1"),
        ("mmap", "--unknown"),
    ],
)
def test_usage(stream: Path, weights: Weights, options: tuple[str, ...]) -> None:
    done = call(stream, weights, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
