"""The kernel `stream`, on real files: the same sums whatever brings the weights into memory."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from coldbench.measure.cgroup import Group, own_group
from coldbench.measure.launcher import Launched
from coldbench.measure.pagecache import evict

from .stream_kernel import LAYERS, MIB, TOKENS, Weights, argv, call, result, sums

RunIn = Callable[..., Launched]

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


def into(group: Group, *command: str) -> list[str]:
    """Return a command line that enters the group before it becomes `command`."""
    return ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(group.procs[0]), *command]


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


def beside_a_taker(
    stream: Path, weights: Weights, limit: int, megabytes: int, piece: str
) -> dict[str, Any]:
    """Run the kernel in a group in which another process takes memory; return what it printed."""
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
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("megabytes", "piece", "fallback", "most"),
    [
        (40, "0", "fewer layers", 80),  # whole layers: all of them
        (40, "2097152", "fewer layers", 60),  # pieces: little more than was taken
        (68, "2097152", "mmap", 80),
    ],
)
def test_the_guard_gives_way_to_another_process_in_the_group(
    stream: Path, weights: Weights, megabytes: int, piece: str, fallback: str, most: int
) -> None:
    limit = (104 if fallback != "mmap" else 84) * MIB
    alone = result(call(stream, weights, "mmap", *SLOW))
    # On a busy machine the guard sees less room and may go a step further, but not most times.
    ends = []
    while len(ends) < 5 and ends.count(fallback) < 3:
        found = beside_a_taker(stream, weights, limit, megabytes, piece)
        assert found["guard_shrinks"] > 0
        assert found["retained_at_end_bytes"] < found["retained_bytes"]
        assert found["checksum"] == alone["checksum"]
        assert found["checksums"][:1] == sums(weights, 1, 4)
        ends.append(found["fallback"] if found["guard_returned_bytes"] <= most * MIB else "all")
    assert ends.count(fallback) == 3, ends


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
