"""What the tests of the stream kernel share: weights, their checksums, and a run of the program."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MIB = 2**20
ROW = 4096
TOKENS = 3
LAYERS = 6
U64 = npt.NDArray[np.uint64]


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


def argv(stream: Path, weights: Weights, policy: str) -> list[str]:
    paths = (stream, "--model", weights.model, "--feed", weights.feed)
    return [*map(str, paths), "--policy", policy]


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
