"""Models that the server offers."""

import hashlib
from collections.abc import Mapping

from tests.unit.gguf_files import DATA, gguf, key, number, text

GOOD = (DATA / "ok_v3.gguf").read_bytes()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def shards(name: str, count: int = 3, size: int = 8192) -> dict[str, bytes]:
    """Return a split model of `count` shards of one F32 tensor of `size` bytes each."""
    files = {}
    for index in range(count):
        keys = [
            key("general.architecture", 8, text("llama")),
            number("split.no", index),
            number("split.count", count),
            number("split.tensors.count", count),
        ]
        tensors = [(f"blk.{index}.weight", (32, size // 128), 0, 0)]
        body = bytes((index + at) % 251 for at in range(size))
        files[f"{name}-{index + 1:05d}-of-{count:05d}.gguf"] = gguf(keys, tensors, body)
    return files


def changed(content: bytes) -> bytes:
    """Return the content with its last byte changed."""
    return content[:-1] + bytes([content[-1] ^ 1])


def with_readme(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {"README.md": b"# a model\n", **files}
