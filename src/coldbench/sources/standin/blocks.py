"""Random tensor data as ggml stores it: finite, of a chosen spread, the same on every machine.

Every bit comes from the raw integer stream of a PCG64 generator (whose stream NumPy keeps stable),
and only exact IEEE arithmetic is applied to it. The block layouts are those of ggml-common.h.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldbench.common.errors import ColdbenchError

CHUNK_BYTES = 8 << 20
_UNIFORM_16 = 2**15 / np.sqrt(3.0)
"""Standard deviation of a uniform 16-bit integer."""


@dataclass(frozen=True)
class BlockType:
    """A ggml type: its block's layout, and what its random codes look like at scale 1.

    `spread` is the standard deviation of a block's values at scale `d` = 1; `minimum` is what
    the block's offset field must hold, in units of `d`, for values around zero.
    """

    values: int
    layout: np.dtype[np.void]
    spread: float
    offset_field: str = ""
    minimum: float = 0.0


def _layout(*fields: tuple[str, str, int]) -> np.dtype[np.void]:
    return np.dtype([(name, code, (count,)) for name, code, count in fields])


_QUANTISED = {
    "Q4_0": BlockType(32, _layout(("d", "<f2", 1), ("qs", "u1", 16)), 4.61),
    "Q4_1": BlockType(
        32, _layout(("d", "<f2", 1), ("m", "<f2", 1), ("qs", "u1", 16)), 4.61, "m", -7.5
    ),
    "Q5_0": BlockType(32, _layout(("d", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16)), 9.23),
    "Q5_1": BlockType(
        32,
        _layout(("d", "<f2", 1), ("m", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16)),
        9.23,
        "m",
        -15.5,
    ),
    "Q8_0": BlockType(32, _layout(("d", "<f2", 1), ("qs", "u1", 32)), 73.9),
    "IQ4_NL": BlockType(32, _layout(("d", "<f2", 1), ("qs", "u1", 16)), 67.2),
    # d * scale * code - m * minimum, scale and minimum being random 6-bit numbers.
    "Q4_K": BlockType(
        256,
        _layout(("d", "<f2", 1), ("m", "<f2", 1), ("scales", "u1", 12), ("qs", "u1", 128)),
        259.0,
        "m",
        7.5,
    ),
    "Q5_K": BlockType(
        256,
        _layout(
            ("d", "<f2", 1),
            ("m", "<f2", 1),
            ("scales", "u1", 12),
            ("qh", "u1", 32),
            ("qs", "u1", 128),
        ),
        527.0,
        "m",
        15.5,
    ),
    "Q6_K": BlockType(
        256,
        _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "u1", 16), ("d", "<f2", 1)),
        1366.0,
    ),
}
_PLAIN_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
TYPES = (*_PLAIN_BYTES, *_QUANTISED)
"""The ggml types that can be written."""


def check_type(name: str) -> None:
    """Raise ColdbenchError unless `name` is a type that can be written."""
    if name not in TYPES:
        raise ColdbenchError(
            f"table type {name}: stand-ins are written in one of {', '.join(TYPES)}"
        )


def block_values(name: str) -> int:
    """Return how many values a block of type `name` holds (1 for a plain type)."""
    return _QUANTISED[name].values if name in _QUANTISED else 1


def row_bytes(name: str, values: int) -> int:
    """Return the bytes of a row of `values` values, a multiple of the type's block."""
    if name in _PLAIN_BYTES:
        return values * _PLAIN_BYTES[name]
    kind = _QUANTISED[name]
    return values // kind.values * kind.layout.itemsize


def random_data(
    name: str, values: int, spread: float, zero_values: int, seed: str
) -> Iterator[memoryview]:
    """Yield the data of a tensor of `values` random values of type `name`, in chunks.

    The values lie around 0 with standard deviation `spread`; the first `zero_values` (whole
    blocks) are 0. `seed` is any text: the same text gives the same bytes.
    """
    key = int.from_bytes(hashlib.sha256(seed.encode()).digest(), "little")
    bits = np.random.PCG64(key)
    unit = block_values(name)
    unit_bytes = row_bytes(name, unit)
    # A multiple of 8 blocks takes whole 64-bit words, so the stream does not depend on the chunk.
    step = max(8, CHUNK_BYTES // unit_bytes // 8 * 8)
    for first in range(0, values // unit, step):
        count = min(step, values // unit - first)
        zeros = min(max(zero_values // unit - first, 0), count)
        make = _quantised if name in _QUANTISED else _plain
        yield memoryview(make(name, bits, count, spread, zeros).view(np.uint8).data)


def constant_data(values: int, value: float) -> memoryview:
    """Return `values` copies of `value` as F32 data."""
    return memoryview(np.full(values, value, dtype="<f4").view(np.uint8).data)


def _random_bytes(bits: np.random.PCG64, count: int) -> NDArray[np.uint8]:
    words: NDArray[np.uint64] = bits.random_raw(-(-count // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:count]


def _quantised(
    name: str, bits: np.random.PCG64, count: int, spread: float, zeros: int
) -> NDArray[np.void]:
    kind = _QUANTISED[name]
    blocks = _random_bytes(bits, count * kind.layout.itemsize).view(kind.layout)
    scale = np.float16(spread / kind.spread)
    blocks["d"] = scale
    blocks["d"][:zeros] = 0
    if kind.offset_field:
        blocks[kind.offset_field] = np.float16(float(scale) * kind.minimum)
        blocks[kind.offset_field][:zeros] = 0
    return blocks


def _plain(
    name: str, bits: np.random.PCG64, count: int, spread: float, zeros: int
) -> NDArray[np.generic]:
    integers = _random_bytes(bits, count * 2).view("<i2")
    values = integers.astype("<f4") * np.float32(spread / _UNIFORM_16)
    values[:zeros] = 0
    if name == "F16":
        return values.astype("<f2")
    if name == "BF16":
        return (values.view("<u4") >> 16).astype("<u2")
    return values
