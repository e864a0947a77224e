"""Tokens of a text, by an engine's own tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.traces import make_trace
from tests.unit.gguf_files import TABLE, gguf, heading

F32, ROWS = 0, 50


@pytest.fixture
def gemma4(tmp_path: Path) -> Path:
    path = tmp_path / "gemma4.gguf"
    path.write_bytes(gguf(heading("gemma4", ROWS), [(TABLE, (4, ROWS), F32, 0)], bytes(16 * ROWS)))
    return path


def refused(model: Path, stream: dict[str, Any]) -> str:
    with pytest.raises(ColdbenchError) as caught:
        make_trace(model, stream)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def program(folder: Path, script: str) -> Path:
    path = folder / "llama-tokenize"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def tokenize(model: Path, script: str, words: str = "words") -> dict[str, Any]:
    (model.parent / "a text").write_text(words)
    return {"text": model.parent / "a text", "tokenizer": program(model.parent, script)}


def test_the_program_is_asked_for_ids_and_not_by_the_callers_environment(
    gemma4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODEL", "other")
    script = 'test -z "$LLAMA_ARG_MODEL" || exit 9; echo "$*" > "${2%/*}/asked"; echo "[4, 5, 6]"'
    found = make_trace(gemma4, tokenize(gemma4, script))
    assert found.rows.tolist() == [4, 5, 6]
    asked = (gemma4.parent / "asked").read_text().strip()
    text_path = gemma4.parent / "a text"
    assert asked == f"-m {gemma4} -f {text_path} --ids --no-escape --no-parse-special"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo cannot load >&2; exit 1", "failed with exit status 1: cannot load"),
        ("exit 3", "failed with exit status 3: no message"),
        ("echo '[1, 99]'", "token 2 is 99, outside the vocabulary of 50"),
        ("echo '[]'", "has 0 token ids"),
        ("echo usage", "b'usage' is no token id"),
    ],
)
def test_what_the_program_does_wrong_is_told(gemma4: Path, script: str, why: str) -> None:
    assert why in refused(gemma4, tokenize(gemma4, script))


def test_no_text_no_program(gemma4: Path, tmp_path: Path) -> None:
    assert "is no text" in refused(gemma4, tokenize(gemma4, "echo [1]", words=""))
    stream = tokenize(gemma4, "echo [1]")
    assert "cannot be started" in refused(gemma4, stream | {"tokenizer": tmp_path / "none"})
    assert "cannot be read" in refused(gemma4, stream | {"text": tmp_path / "none"})
