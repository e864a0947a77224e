"""Predicted pages against those that a real cold run leaves resident, and the model's tokenizer."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldbench.common.locks import machine
from coldbench.measure.certificate import make_cold
from coldbench.measure.host import host_facts
from coldbench.measure.launcher import environment_for
from coldbench.measure.pagecache import PAGE_BYTES, mincore_pages, opened
from coldbench.sources.builds import prepare_build
from coldbench.sources.header import read_model
from coldbench.sources.standin.vocabulary import tokens
from coldbench.sources.traces import (
    Table,
    Trace,
    batched_bench_tokens,
    make_trace,
    rows_of_tokens,
    table_of,
    vocabulary_of,
)
from coldbench.sources.traces.feed import pages_of
from coldbench.study.plan import Plan

pytestmark = pytest.mark.engine

PROMPT, GENERATED = 384, 16
ATTEMPTS = 3
# The prompt in several batches: n-grams reach over their borders. One thread: several would spin
# for each other beside whatever else the machine does.
ARGS = ["-npp", str(PROMPT), "-ntg", str(GENERATED), "-npl", "1", "-c", "512", "-b", "256"]
ARGS += ["-ub", "128", "-t", "1", "--lazy-mode", "on"]


@pytest.fixture(scope="module")
def tokenizer(demo: Plan, cache: Path) -> Path:
    """The engine's own tokenizer program."""
    spec = demo.builds["patched"].model_copy(update={"targets": ["llama-tokenize"]})
    return Path(prepare_build("tokenizer", spec, cache)["programs"]["llama-tokenize"]["path"])


@pytest.mark.parametrize("build", ["patched", "baseline"])
@pytest.mark.parametrize("name", ["gemma4", "qwen4exp"])
def test_the_predicted_pages_are_those_that_a_cold_lazy_run_leaves(
    demo_builds: dict[str, dict[str, Any]],
    demo_models: dict[str, dict[str, Any]],
    build: str,
    name: str,
    tmp_path: Path,
) -> None:
    """Equal, but for what the kernel reads beside the table at its two ends.

    Before the table lies the header, which is read as a stream: readahead runs up to a window past
    its end. Behind the table lies the body, whose first fault reads half a window around itself,
    and begins within the table's last page. In between not one page may lack or be left over.
    """
    path = Path(demo_models[name]["path"])
    model = read_model(path)
    table = table_of(model)
    trace = rows_of_tokens(
        model, table, batched_bench_tokens(vocabulary_of(model), PROMPT, GENERATED)
    )
    predicted = touched(trace)
    program = demo_builds[build]["programs"]["llama-batched-bench"]["path"]
    # Whoever else needs memory or evicts this file takes pages away, but never adds any.
    for _ in range(ATTEMPTS):
        with machine(alone=True, purpose="predicted pages"):
            make_cold([path])
            subprocess.run(
                [program, "-m", str(path), *ARGS],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                timeout=900,
                env=environment_for({}, tmp_path),
            )
            resident = resident_pages(table)
        if predicted <= resident:
            break
    window = window_pages(path)
    begin = table.offset // PAGE_BYTES + window
    end = (table.offset + table.rows * table.row_bytes - 1) // PAGE_BYTES - window
    assert end - begin > 0.9 * table.rows * table.row_bytes / PAGE_BYTES, "the ends are small"
    assert predicted - resident == set()
    left_over = {page for page in resident - predicted if begin <= page < end}
    assert left_over == set()
    assert len({page for page in predicted if begin <= page < end}) > 0.9 * len(predicted)


@pytest.mark.parametrize("name", ["gemma4", "qwen4exp"])
def test_a_text_becomes_the_tokens_of_the_models_own_tokenizer(
    demo_models: dict[str, dict[str, Any]], tokenizer: Path, name: str, tmp_path: Path
) -> None:
    model = read_model(Path(demo_models[name]["path"]))
    vocabulary = tokens(vocabulary_of(model))
    text = tmp_path / "text.txt"
    # An escape and a special token's name are text like any other.
    text.write_text("cold 一丁 \\n</s>!\n")
    found = make_trace(model.path, {"text": text, "tokenizer": tokenizer})
    ids = {token: number for number, token in enumerate(vocabulary)}
    wanted = [ids.get(c, ids.get("▁")) for c in "cold 一丁 \\n</s>!"] + [ids["<0x0A>"]]
    table = table_of(model)
    again = tmp_path / "ids.txt"
    again.write_text(" ".join(map(str, wanted)))
    assert (found.rows == make_trace(model.path, {"recorded": again}).rows).all()
    assert len(found.rows) == len(wanted) * found.per_token
    assert found.table == table


def touched(trace: Trace) -> set[int]:
    first, last = pages_of(trace.table, trace.rows)
    return {
        page for a, b in zip(first.tolist(), last.tolist(), strict=True) for page in range(a, b + 1)
    }


def resident_pages(table: Table) -> set[int]:
    first, last = pages_of(table, np.array([0, table.rows - 1]))
    with opened(table.file) as descriptor:
        return {
            page
            for page in range(int(first[0]), int(last[1]) + 1)
            if mincore_pages(descriptor, page * PAGE_BYTES, PAGE_BYTES)
        }


def window_pages(path: Path) -> int:
    """Return the pages of a readahead window, by the file's device."""
    return int(host_facts(path)["disk_read_ahead_kb"]) * 1024 // PAGE_BYTES
