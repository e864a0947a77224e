"""Small GGUF files written by hand, to the letter of the format."""

import struct
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "gguf"

Tensor = tuple[str, tuple[int, ...], int, int]
"""Name, shape, ggml type, offset in the data section."""


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def number(name: str, value: int) -> bytes:
    return key(name, 4, struct.pack("<I", value))


def gguf(
    keys: list[bytes], tensors: list[Tensor], data: bytes, version: int = 3, alignment: int = 32
) -> bytes:
    """Return the bytes of a GGUF file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys)
    for name, shape, kind, offset in tensors:
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % alignment) + data
