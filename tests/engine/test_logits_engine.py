"""Logits of the real engine: what keeps every bit, and what a digest of them sees."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldbench.analysis.study import gather
from coldbench.drivers.base import OUT, Output, Result
from coldbench.drivers.registry import check_study, driver_for
from coldbench.measure.block import Prepared, check_identity
from coldbench.records import Exit
from coldbench.sources.builds import prepare_build
from coldbench.sources.header import read_model
from coldbench.study.plan import Plan
from tests.engine.conftest import ROOT
from tests.unit.driver_outputs import workload

pytestmark = pytest.mark.engine

PROMPT = "The page cache was cold, and the table was read row by row. " * 2
EQUAL = ("-c", "512", "-b", "512", "-ub", "512", "-t", "2")
GREEDY = re.compile(r"  greedy:\n.*?\n\n", re.DOTALL)
LOGITS = f"""\
  greedy:
    driver: llama-results
    prompt: "{PROMPT}"
    args: [{", ".join(EQUAL)}]

"""
MODES = """\
  include:
    - {name: none, build: patched, args: [--load-mode, none]}
    - {name: dio, build: baseline, args: [--load-mode, dio, -t, 1]}
    - {name: none-lazy, build: plain, args: [--load-mode, none, --lazy-mode, on, -c, 1024]}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The demo with logits in the place of its text, and load modes."""
    text = (ROOT / "config" / "studies" / "demo.yaml").read_text()
    text = GREEDY.sub(lambda _: LOGITS, text)
    text = text.replace("llama-completion]", "llama-completion, llama-results]")
    text = text.replace("patches/", f"{ROOT}/patches/").replace("  include:\n", MODES)
    path = tmp_path_factory.mktemp("study") / "logits.yaml"
    path.write_text(text)
    plan = Plan(path)
    check_study(plan)
    return plan


@pytest.fixture(scope="module")
def builds(study: Plan, cache: Path) -> dict[str, dict[str, Any]]:
    return {name: prepare_build(name, build, cache) for name, build in study.builds.items()}


@pytest.mark.parametrize("model", ["gemma4", "qwen4exp"])
def test_builds_lazy_reading_and_load_modes_keep_every_bit(
    study: Plan,
    builds: dict[str, dict[str, Any]],
    demo_models: dict[str, dict[str, Any]],
    cache: Path,
    tmp_path: Path,
    model: str,
) -> None:
    spec = study.identity(model)
    assert spec is not None
    check_identity(spec, Prepared(demo_models[model], builds, cache, tmp_path), tmp_path / "r.json")
    found = gather(tmp_path, [tmp_path / "r.json"])
    assert {arm: cell.reason for (_, arm), cell in found.identity.items()} == {
        arm.name: "" for arm in study.arms
    }
    assert len({cell.md5 for cell in found.identity.values()}) == 1
    assert len(study.arms) == 6 + 3 + 1
    # The mutant is a shorter prompt, and the only other digest.
    assert len({run.digest for run in found.runs}) == 2
    assert {run.tokens for run in found.runs if run.digest == found.runs[0].digest} == {len(PROMPT)}
    # Command lines hold no random paths: the file has one name, and is gone.
    written = {run.argv[run.argv.index("-o") + 1] for run in found.runs}
    assert written == {str(cache / "home" / "written")}
    assert not any((cache / "home").iterdir())


@pytest.fixture(scope="module")
def logits(
    builds: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Result]:
    """Run the tool once with further arguments."""
    program = builds["patched"]["programs"]["llama-results"]["path"]
    out = tmp_path_factory.mktemp("out") / "written"

    def run(model: Path, *args: str, prompt: str = PROMPT) -> Result:
        work = workload("llama-results", *EQUAL, prompt=prompt)
        driver = driver_for(work)
        argv = driver.argv(work, program, str(model), args)
        done = subprocess.run(
            [str(out) if arg == OUT else arg for arg in argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=120,
            env={"GGML_NO_BACKTRACE": "1", "PATH": "/usr/bin:/bin"},
        )
        end = (
            Exit(ended="exit", code=done.returncode)
            if done.returncode >= 0
            else Exit(ended="signal", signal=-done.returncode)
        )
        printed = done.stderr.decode("utf-8", "replace")
        result = driver.read(work, Output(end, done.stdout, printed, written=out))
        out.unlink(missing_ok=True)
        return result

    return run


@pytest.fixture(scope="module")
def gemma4(demo_models: dict[str, dict[str, Any]]) -> Path:
    return Path(demo_models["gemma4"]["path"])


def test_reruns_give_the_same_digest(logits: Callable[..., Result], gemma4: Path) -> None:
    digests = [logits(gemma4).digest for _ in range(3)]
    assert digests[0] is not None
    assert len({*digests}) == 1


@pytest.mark.parametrize(
    "args",
    [
        ("-ub", "16"),
        ("-fa", "off"),
        ("-ctk", "q8_0"),
        ("-fa", "on", "-ctv", "q8_0"),
    ],
    ids=" ".join,
)
def test_what_sums_otherwise_changes_bits(
    logits: Callable[..., Result], gemma4: Path, args: tuple[str, ...]
) -> None:
    changed = logits(gemma4, *args)
    assert (changed.status, changed.tokens) == ("ok", len(PROMPT))
    assert changed.digest != logits(gemma4).digest


def test_another_prompt_of_the_same_length_changes_bits(
    logits: Callable[..., Result], gemma4: Path
) -> None:
    mutated = logits(gemma4, prompt=PROMPT.replace("cold", "warm"))
    assert (mutated.status, mutated.tokens) == ("ok", len(PROMPT))
    assert mutated.digest != logits(gemma4).digest


def test_the_lowest_bit_of_one_quantised_weight_is_seen(
    logits: Callable[..., Result], smollm: Path, tmp_path: Path
) -> None:
    mutant = tmp_path / "mutant.gguf"
    shutil.copyfile(smollm, mutant)
    # Q4_1: F16 scale, F16 minimum, nibbles. (That of an F32 norm is lost where rows are rounded.)
    at = read_model(smollm).tensors["blk.0.attn_v.weight"].offset + 4
    with mutant.open("r+b") as file:
        file.seek(at)
        (before,) = file.read(1)
        file.seek(at)
        file.write(bytes([before ^ 1]))
    sound, faulty = logits(smollm), logits(mutant)
    assert sound.tokens == faulty.tokens
    assert sound.digest != faulty.digest


def test_a_prompt_beyond_the_batch_fails_with_the_engine_s_words(
    logits: Callable[..., Result], gemma4: Path
) -> None:
    failed = logits(gemma4, "-b", "16")
    assert failed.status == "failed"
    assert "failed to add token" in failed.reason
