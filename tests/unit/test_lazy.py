"""Which tensors can be read lazily, and why the others cannot."""

import os
from pathlib import Path

import pytest

from coldbench.publish.sizing import sizing
from coldbench.sources.survey import survey
from tests.unit.gguf_files import TABLE, gguf, key, text

F32 = 0
GIB = 2**30


def sparse(tmp_path: Path, architecture: str, tensors: dict[str, int]) -> str:
    """Write a model of F32 tensors, of so many GiB each, without data; return its text."""
    lines, offset = [], 0
    for name, size in tensors.items():
        lines.append((name, (1024, size // 4096), F32, offset))
        offset += size
    path = tmp_path / "toy-F32.gguf"
    path.write_bytes(gguf([key("general.architecture", 8, text(architecture))], lines, b""))
    os.truncate(path, path.stat().st_size + offset)
    return sizing(survey([str(path)], "*"))


@pytest.mark.parametrize(
    ("architecture", "size", "mode", "why"),
    [
        ("qwen4exp", 4 * GIB + 4096, "auto and on", "flagged by qwen4exp, above 4 GiB"),
        ("gemma4", 4 * GIB, "on", "flagged by gemma4; auto begins above 4 GiB"),
        ("gemma3n", 5 * GIB, "never", "gemma3n flags no tensor, whatever its size"),
        ("gemma3n", GIB, "never", "gemma3n flags no tensor"),
    ],
)
def test_what_can_be_lazy_and_why_not(
    tmp_path: Path, architecture: str, size: int, mode: str, why: str
) -> None:
    tensors = {TABLE: size, "token_embd.weight": 8 * GIB, "output.weight": GIB}
    shown = sparse(tmp_path, architecture, tensors)
    (part,) = [part for part in shown.split("\n\n") if part.splitlines()[0].endswith("why")]
    lines = {line.split()[1]: " ".join(line.split()[3:]) for line in part.splitlines()[2:]}
    assert lines[TABLE] == f"{size:,} {mode} {why}"
    flags = "does not flag it" if architecture != "gemma3n" else "flags no tensor"
    embedding = f"{8 * GIB:,} never {architecture} {flags}, whatever its size"
    assert lines["token_embd.weight"] == embedding
    assert lines["output.weight"] == f"{GIB:,} never {architecture} {flags}"


def test_many_large_tensors_without_a_flag_are_one_line(tmp_path: Path) -> None:
    tensors = {f"blk.{n}.ffn_up_exps.weight": 5 * GIB for n in range(9)}
    shown = sparse(tmp_path, "deepseek2", tensors)
    assert shown.count("ffn_up_exps") == 3
    assert "6 more" in shown
    assert f"{30 * GIB:,}" in shown
