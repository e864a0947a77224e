"""Small GGUF files written by hand, to the letter of the format."""

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TABLE = "per_layer_token_embd.weight"
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


def strings(name: str, values: Sequence[str]) -> bytes:
    return key(name, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values)))


def heading(architecture: str, vocabulary: int = 50) -> list[bytes]:
    found = [key("general.architecture", 8, text(architecture))]
    if vocabulary:
        found.append(strings("tokenizer.ggml.tokens", [f"t{n}" for n in range(vocabulary)]))
    return found


def record(path: Path, table: str | None = TABLE) -> dict[str, Any]:
    """Return what a study's record of the model `path` says of its file and table."""
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "path": str(path),
        "content": content,
        "table": None if table is None else {"tensor": table},
    }
