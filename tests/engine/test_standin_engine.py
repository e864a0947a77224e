"""The real engine loads stand-ins, reads their tables lazily and writes text worth comparing."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coldbench.sources.header import TABLE_TENSOR, find_table, read_model
from coldbench.sources.standin import write_standin
from coldbench.sources.standin.vocabulary import RESERVED, tokens
from coldbench.study.models import StandIn

pytestmark = pytest.mark.engine

SMALL: dict[str, dict[str, Any]] = {
    "gemma4": {"body": "24MiB", "table": {"rows": 8192, "type": "Q8_0"}},
    "gemma4-Q5_K": {"body": "24MiB", "table": {"rows": 2048, "type": "Q5_K"}},
    "qwen4exp": {"body": "32MiB", "table": {"rows": 500_000, "type": "IQ4_NL"}},
    "qwen4exp-Q4_K": {"body": "144MiB", "table": {"rows": 10_000, "type": "Q4_K"}},
    "llama": {"body": "16MiB"},
}
WITH_TABLE = [name for name in SMALL if name != "llama"]
PROMPT = "The page cache was cold."
TOKENS = 64
# One thread: several would spin for each other beside whatever else the machine does.
THREADS = ["-t", "1"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("standins")
    paths = {name: folder / f"{name}.gguf" for name in SMALL}
    for name, keys in SMALL.items():
        architecture = name.partition("-")[0]
        write_standin(StandIn.model_validate({"architecture": architecture, **keys}), paths[name])
    return paths


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")
    }
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=300,
        env=environment | {"GGML_NO_BACKTRACE": "1"},
    )


def text(binaries: Path, model: Path, prompt: str, *more: str) -> str:
    argv = [str(binaries / "llama-completion"), "-m", str(model), "-p", prompt, *more, *THREADS]
    argv += ["-no-cnv", "--temp", "0", "--no-display-prompt", "--ignore-eos", "--no-warmup"]
    # The engine may exit before the last tokens are flushed: some are made to be lost.
    argv += ["-lv", "0", "-c", "512", "-n", str(TOKENS + 32)]
    found = run(argv).stdout[:TOKENS]
    assert len(found) == TOKENS, "a token is a character"
    return found


@pytest.mark.parametrize("name", SMALL)
def test_greedy_text_is_varied_printable_and_the_prompts_own(
    llama_binaries: Path, models: dict[str, Path], name: str
) -> None:
    first = text(llama_binaries, models[name], PROMPT)
    assert len(set(first)) > 16
    assert first.isprintable()
    assert text(llama_binaries, models[name], PROMPT) == first
    assert text(llama_binaries, models[name], PROMPT.replace("cold", "warm")) != first


@pytest.mark.parametrize("name", WITH_TABLE)
def test_the_table_is_read_lazily_and_nothing_else_is(
    llama_binaries: Path, models: dict[str, Path], name: str
) -> None:
    argv = [str(llama_binaries / "llama-batched-bench"), "-m", str(models[name]), "-c", "256"]
    argv += ["-npp", "64", "-ntg", "8", "-npl", "1", *THREADS, "-lv", "4"]
    lazy = [line for line in _log(argv, "on") if "lazy read enabled" in line]
    assert len(lazy) == 1
    assert TABLE_TENSOR in lazy[0]
    assert not any("lazy read enabled" in line for line in _log(argv, "off"))


def _log(argv: list[str], mode: str) -> list[str]:
    # The engine may exit before its log is flushed: the lines of loading then lack too.
    for _ in range(5):
        lines = run([*argv, "--lazy-mode", mode]).stderr.splitlines()
        if any("model buffer size" in line for line in lines):
            return lines
    pytest.fail("the engine did not print its log in five runs")


@pytest.mark.parametrize("name", ["gemma4", "qwen4exp"])
def test_the_text_depends_on_the_tables_content(
    llama_binaries: Path, models: dict[str, Path], name: str, tmp_path: Path
) -> None:
    blank = tmp_path / "blank.gguf"
    shutil.copy(models[name], blank)
    table = find_table(read_model(blank), None)
    assert table is not None
    with blank.open("r+b") as stream:
        stream.seek(table.offset)
        stream.write(bytes(table.size))
    lazy = ("--lazy-mode", "on")
    whole = text(llama_binaries, models[name], PROMPT, *lazy)
    assert whole == text(llama_binaries, models[name], PROMPT, "--lazy-mode", "off")
    assert whole != text(llama_binaries, blank, PROMPT, *lazy)


@pytest.mark.parametrize("name", ["gemma4", "llama"])
def test_any_sequence_of_tokens_can_be_written_as_a_prompt(
    llama_binaries: Path, models: dict[str, Path], name: str
) -> None:
    vocabulary = tokens(8192)
    wanted = [*range(RESERVED, 400), *range(8191, 4000, -97)]
    prompt = "".join(vocabulary[token] for token in wanted).replace("▁", " ")
    # -lv 5 would drown it; the count of prompt tokens stands in the timings.
    argv = [str(llama_binaries / "llama-completion"), "-m", str(models[name]), "-p", prompt]
    argv += ["-n", "1", "-no-cnv", "--temp", "0", "--no-warmup", "-c", "512", *THREADS]
    for _ in range(5):
        log = run([*argv, "--verbose-prompt", "-lv", "4"]).stderr
        if "number of tokens in prompt" in log:
            break
    assert f"number of tokens in prompt = {len(wanted)}" in log
