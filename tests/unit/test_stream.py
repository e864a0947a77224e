"""The kernel `stream`, on real files: the same sums whatever brings the weights into memory."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from coldbench.measure.cgroup import Group, own_group
from coldbench.measure.launcher import Launched
from coldbench.measure.native import SOURCES
from coldbench.measure.pagecache import evict

MIB = 2**20
ROW = 4096
TOKENS = 3
LAYERS = 6
RunIn = Callable[..., Launched]
U64 = npt.NDArray[np.uint64]

POLICIES = [
    ("mmap",),
    ("mmap+sequential",),
    ("mmap+random",),
    ("mmap+willneed",),
    ("mmap+hugepage",),
    ("mmap+populate",),
    ("mmap+sequential+willneed",),
    ("mmap+hugepage+willneed",),
    ("read",),
    ("direct",),
    ("scheduled",),
    ("scheduled", "--buffers", "3", "--depth", "3", "--read-size", "1048576"),
    ("scheduled", "--huge"),
    ("scheduled", "--piece", "1048576", "--buffers", "5"),
    ("direct", "--piece", "65536"),
    ("scheduled", "--reverse"),
    ("scheduled+uring",),
    ("scheduled+uring", "--piece", "3145728", "--depth", "8", "--read-size", "262144"),
]


@dataclass(frozen=True)
class Weights:
    """A model in two files, as ranges of (layer, offset, bytes, file)."""

    model: Path
    feed: Path
    ranges: tuple[tuple[int, int, int, Path], ...]

    @property
    def size(self) -> int:
        return sum(size for _, _, size, _ in self.ranges)


def write_feed(feed: Path, ranges: tuple[tuple[int, int, int, Path], ...]) -> None:
    lines = [f"CBLAYERS1 {ranges[-1][0] + 1} {len(ranges)}"]
    lines += [f"{layer} {offset} {size} {file.name}" for layer, offset, size, file in ranges]
    feed.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("native")
    for command in (
        f"cmake -S {SOURCES.parent}/kernels -B {build} -G Ninja -DCMAKE_BUILD_TYPE=Release",
        f"cmake --build {build} --target stream",
    ):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stdout
    return build / "stream"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Six layers of about 12 MiB at odd offsets.

    A layer has a large range, a short one that shares a page with it, and one in another shard;
    the last layer's bytes are the last of the file, whose size is no multiple of a page.
    """
    folder = tmp_path_factory.mktemp("weights")
    first, second = folder / "a model.gguf", folder / "shard 2.gguf"
    random = np.random.default_rng(5)
    ranges: list[tuple[int, int, int, Path]] = []
    at = 12_345
    for layer in range(LAYERS):
        large = 11 * MIB + 1000 * layer + 7
        ranges.append((layer, at, large, first))
        ranges.append((layer, at + large + 5, 100, first))
        ranges.append((layer, 777 + layer * MIB, MIB, second))
        at += large + 105
    first.write_bytes(random.bytes(at))
    second.write_bytes(random.bytes(777 + LAYERS * MIB))
    feed = folder / "layers"
    write_feed(feed, tuple(ranges))
    return Weights(first, feed, tuple(ranges))


def mixed(value: U64) -> U64:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def sums(weights: Weights, tokens: int, work: int) -> list[str]:
    """Return the checksums by the definition in compute.h, without any of its code."""
    found = [0] * tokens
    row = 0
    for layer, offset, size, file in weights.ranges:
        row = 0 if offset == 12_345 or (layer and file == weights.model and size > MIB) else row
        with file.open("rb") as opened:
            opened.seek(offset)
            data = np.frombuffer(opened.read(size), np.int8).astype(np.float64)
        rows = -(-size // ROW)
        matrix = np.zeros(rows * ROW)
        matrix[:size] = data
        numbers = np.arange(row, row + rows, dtype=np.uint64)
        for token in range(tokens):
            x = np.zeros(ROW)
            for step in range(work):
                seed = ((token << 40) ^ (layer << 16) ^ step) << 12
                bits = mixed(np.uint64(seed) ^ np.arange(ROW, dtype=np.uint64)) >> np.uint64(56)
                x += bits.astype(np.uint8).view(np.int8)
            # Exact: whole numbers below 2^53.
            y = (matrix.reshape(rows, ROW) @ x).astype(np.int64).view(np.uint64)
            terms = mixed(y ^ mixed(np.uint64(layer << 40) ^ numbers))
            found[token] = (found[token] + int(terms.sum(dtype=np.uint64))) % 2**64
        row += rows
    return [f"{value:016x}" for value in found]


@pytest.fixture(scope="session")
def expected(weights: Weights) -> list[str]:
    return sums(weights, TOKENS, 1)


def argv(stream: Path, weights: Weights, policy: str) -> list[str]:
    paths = (stream, "--model", weights.model, "--feed", weights.feed)
    return [*map(str, paths), "--policy", policy]


def into(group: Group, *command: str) -> list[str]:
    """Return a command line that enters the group before it becomes `command`."""
    return ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(group.procs[0]), *command]


def call(
    stream: Path, weights: Weights, policy: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*argv(stream, weights, policy), "--tokens", str(TOKENS), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("policy", POLICIES, ids="-".join)
def test_every_policy_computes_what_numpy_does(
    stream: Path, weights: Weights, expected: list[str], policy: tuple[str, ...]
) -> None:
    evict({file for *_, file in weights.ranges})
    done = result(call(stream, weights, *policy, "--budget", str(72 * MIB)))
    assert done["checksums"] == expected
    assert done["weights_bytes"] == weights.size
    assert (done["layers"], done["tokens"], len(done["token_s"])) == (LAYERS, TOKENS, TOKENS)
    assert done["hint_errors"] == 0
    if "+" in policy[0] and policy[0].startswith("mmap"):
        assert done["hints"] > 0
    assert done["read_bytes"] >= weights.size
    assert done["request_s"] > done["first_token_s"] > 0
    assert done["fallback"] == ""


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads_and_work_change_no_exactness(
    stream: Path, weights: Weights, expected: list[str], threads: str
) -> None:
    done = result(call(stream, weights, "mmap", "--threads", threads))
    assert done["checksums"] == expected
    done = result(call(stream, weights, "mmap", "--threads", threads, "--work", "3"))
    assert done["checksums"] == sums(weights, TOKENS, 3)


def test_a_mutant_that_skips_a_byte_has_another_checksum(
    stream: Path, weights: Weights, expected: list[str]
) -> None:
    done = result(call(stream, weights, "mmap", "--mutant"))
    assert not set(done["checksums"]) & set(expected)


@pytest.mark.parametrize(
    ("options", "kept_most"),
    [(("scheduled",), 2), (("scheduled", "--piece", "1048576"), LAYERS), (("scheduled+uring",), 2)],
)
def test_a_steady_token_reads_what_is_not_retained(
    stream: Path, weights: Weights, options: tuple[str, ...], kept_most: int
) -> None:
    budget = 24 + 24 + 25 if "--piece" not in options else 24 + 40
    done = result(call(stream, weights, *options, "--budget", str(budget * MIB)))
    streamed = weights.size - done["retained_bytes"]
    assert done["bytes_per_token"] == pytest.approx(streamed, rel=0.03)
    assert 20 * MIB < done["retained_bytes"] == done["retained_at_end_bytes"]
    assert done["retained_layers"] <= kept_most
    assert done["buffer_bytes"] + done["retained_bytes"] + done["reserve_bytes"] <= budget * MIB
    assert done["first_token_read_bytes"] >= weights.size
    assert 0 <= done["overlap"] <= 1
    assert done["io_s"] > 0 < done["compute_s"]


def test_weights_that_fit_are_read_once(
    stream: Path, weights: Weights, expected: list[str]
) -> None:
    done = result(call(stream, weights, "scheduled", "--budget", str(120 * MIB)))
    assert (done["retained_bytes"], done["bytes_per_token"]) == (weights.size, 0)
    assert done["retained_layers"] == LAYERS
    assert done["checksums"] == expected


def test_a_reversed_token_finds_the_last_layers_in_the_buffers(
    stream: Path, weights: Weights
) -> None:
    budget = ("--budget", str(60 * MIB), "--tokens", "5")
    forward = result(call(stream, weights, "scheduled", *budget))
    turned = result(call(stream, weights, "scheduled", *budget, "--reverse"))
    assert (forward["order"], turned["order"]) == ("forward", "alternating")
    assert forward["retained_layers"] == turned["retained_layers"] <= 1
    saved = forward["bytes_per_token"] - turned["bytes_per_token"]
    assert saved > 0.9 * 12 * MIB


SLOW = ("--tokens", "40", "--work", "4")


@pytest.mark.usefixtures("real")
def test_the_limit_of_its_group_is_the_budget_and_holds(
    run_in: RunIn, stream: Path, weights: Weights, tmp_path: Path
) -> None:
    limit = 72 * MIB
    with own_group(limit, "stream", weights.model) as group:
        done = run_in(group, *argv(stream, weights, "scheduled"))
        peak, kills = group.peak_bytes(), group.oom_kills()
    assert done.exit.code == 0, (tmp_path / "err").read_text()
    found = json.loads((tmp_path / "out").read_text())
    assert found["budget_bytes"] == limit
    assert found["retained_layers"] == 1
    assert (found["guard_shrinks"], kills) == (0, 0)
    assert peak is None or 36 * MIB < peak <= limit


def taker(group: Group, megabytes: int) -> subprocess.Popen[bytes]:
    """Enter the group, and on a line of stdin take memory there at full speed, and hold it."""
    script = (
        f"import sys; open({str(group.procs[0])!r}, 'w').write('0'); print(flush=True);"
        f"sys.stdin.readline(); held = bytearray({megabytes} << 20);"
        "held[::4096] = b'x' * len(held[::4096]); print(flush=True); sys.stdin.readline()"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("megabytes", "piece", "fallback"),
    [(40, "0", "fewer layers"), (40, "2097152", "fewer layers"), (68, "2097152", "mmap")],
)
def test_the_guard_gives_way_to_another_process_in_the_group(
    stream: Path,
    weights: Weights,
    megabytes: int,
    piece: str,
    fallback: str,
) -> None:
    limit = (104 if fallback != "mmap" else 84) * MIB
    with own_group(limit, "guard", weights.model) as group:
        other = taker(group, megabytes)
        assert other.stdin is not None
        assert other.stdout is not None
        command = [*argv(stream, weights, "scheduled"), *SLOW, "--piece", piece]
        kernel = subprocess.Popen(into(group, *command), stdout=subprocess.PIPE, text=True)
        try:
            while psutil.Process(kernel.pid).memory_info().rss < 0.6 * limit:
                assert kernel.poll() is None
                time.sleep(0.01)
            time.sleep(0.2)
            other.stdin.write(b"\n")
            other.stdin.flush()
            other.stdout.readline()
            text, _ = kernel.communicate(timeout=60)
            assert other.poll() is None
        finally:
            for process in (kernel, other):
                process.kill()
                process.wait()
        assert group.oom_kills() == 0
        peak = group.peak_bytes()
        assert peak is None or peak <= limit
    assert kernel.returncode == 0
    found = json.loads(text)
    assert found["guard_shrinks"] > 0
    # On a busy machine the guard sees less room, and may go a step further.
    steps = ["", "fewer layers", "mmap"]
    assert steps.index(found["fallback"]) >= steps.index(fallback)
    assert found["retained_at_end_bytes"] < found["retained_bytes"]
    assert found["checksums"][:1] == sums(weights, 1, 4)
    alone = result(call(stream, weights, "mmap", *SLOW))
    assert found["checksum"] == alone["checksum"]


@pytest.mark.usefixtures("real")
def test_memory_that_others_hold_from_the_start_means_fewer_layers(
    stream: Path, weights: Weights, expected: list[str]
) -> None:
    with own_group(90 * MIB, "held", weights.model) as group:
        other = taker(group, 20)
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            other.stdin.write(b"\n")
            other.stdin.flush()
            other.stdout.readline()
            command = [*argv(stream, weights, "scheduled"), "--tokens", str(TOKENS)]
            done = result(
                subprocess.run(into(group, *command), capture_output=True, text=True, check=False)
            )
        finally:
            other.kill()
            other.wait()
        assert group.oom_kills() == 0
    assert done["fallback"] == "fewer layers"
    assert done["retained_layers"] <= 1
    assert done["checksums"] == expected


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


def test_advice_that_fails_is_told(
    stream: Path, weights: Weights, expected: list[str], tmp_path: Path
) -> None:
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(
        "#include <errno.h>\n#include <stddef.h>\n"
        "int madvise(void *a, size_t b, int c)\n"
        "{ (void)a; (void)b; (void)c; errno = EINVAL; return -1; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source], check=True)
    done = result(call(stream, weights, "mmap+willneed", LD_PRELOAD=str(shim)))
    assert done["hint_errors"] == done["hints"] > 0
    assert done["hint_error"] == "madvise(MADV_WILLNEED): Invalid argument"
    assert done["checksums"] == expected
    done = result(call(stream, weights, "mmap", LD_PRELOAD=str(shim)))
    assert (done["hint_errors"], "hint_error" in done) == (0, False)
