"""The identity check on the real engine: every mutant is caught, and equal runs never are."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from coldbench.analysis.identity import IdentityRun, judge
from coldbench.common.hashing import text_md5
from coldbench.drivers.base import Output
from coldbench.drivers.registry import driver_for
from coldbench.records import Exit, Run
from coldbench.sources.header import read_model
from coldbench.study.workloads import Completion
from tests.unit.fabricated_runs import fabricated_run

pytestmark = pytest.mark.engine

REPEATS = 200
ATTEMPTS = 5  # the engine does not flush its log at exit: a result may be missing
PROMPT, MUTANT = "A page cache keeps", "A page cache forgets"
WORK = {"driver": "llama-completion", "tokens": 64, "args": ["-c", "256", "-t", "2"]}

Check = Callable[..., Run]


@pytest.fixture(scope="module")
def generate(llama_binaries: Path) -> Check:
    """Run the engine once through its driver, or what `wrapped` makes of its command line."""

    def run(model: Path, prompt: str = PROMPT, wrapped: str = 'exec "$@"') -> Run:
        work = TypeAdapter(Completion).validate_python({**WORK, "prompt": prompt})
        driver = driver_for(work)
        program = str(llama_binaries / driver.program(work))
        argv = driver.argv(work, program, str(model), [])
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                ["/bin/sh", "-c", wrapped, "sh", *argv],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=120,
                env={"GGML_NO_BACKTRACE": "1", "PATH": "/usr/bin:/bin"},
            )
            end = Exit(ended="exit", code=done.returncode)
            result = driver.read(
                work, Output(end, done.stdout, done.stderr.decode("utf-8", "replace"))
            )
            if result.status != "void":
                break
        return fabricated_run(
            "arm",
            0,
            state="unmeasured",
            status=result.status,
            reason=result.reason,
            digest=text_md5(result.text) if result.text else None,
            tokens=result.tokens,
        )

    return run


@pytest.fixture(scope="module")
def sound(generate: Check, smollm: Path) -> list[IdentityRun]:
    """One arm with its two controls."""
    runs = {
        "": generate(smollm),
        "repeat": generate(smollm),
        "mutant": generate(smollm, MUTANT),
    }
    return [IdentityRun("model", "arm", (), variant, run) for variant, run in runs.items()]


def faults(sound: list[IdentityRun], **others: Run) -> dict[str, str]:
    """Judge further arms beside the sound one: reasons by arm, empty where it passed."""
    beside = [IdentityRun("model", arm, (), "", run) for arm, run in others.items()]
    return {arm: cell.reason for (_, arm), cell in judge([*sound, *beside]).items()}


def test_the_arm_and_its_controls_are_sound(sound: list[IdentityRun]) -> None:
    assert faults(sound) == {"arm": ""}
    assert {run.run.tokens for run in sound if run.run} == {WORK["tokens"]}


@pytest.mark.parametrize(
    ("tensor", "byte"),
    [
        ("blk.0.attn_v.weight", 1),
        ("blk.0.attn_norm.weight", 3),
        ("blk.15.ffn_down.weight", 1),
        ("output_norm.weight", 3),
    ],
)
def test_a_flipped_weight_byte_is_caught(
    generate: Check,
    sound: list[IdentityRun],
    smollm: Path,
    tmp_path: Path,
    tensor: str,
    byte: int,
) -> None:
    # The high byte of a norm (F32) or of a block's scale (Q4_1: F16 scale, F16 minimum, nibbles):
    # a byte whose flip changes a weight by more than quantisation does.
    mutant = tmp_path / "mutant.gguf"
    shutil.copyfile(smollm, mutant)
    at = read_model(smollm).tensors[tensor].offset + byte
    with mutant.open("r+b") as file:
        file.seek(at)
        (before,) = file.read(1)
        file.seek(at)
        file.write(bytes([before ^ 0x40]))
    found = faults(sound, mutant=generate(mutant))
    assert found["mutant"], found


@pytest.mark.parametrize(
    ("wrapped", "reason"),
    [
        ('exec "$@" --temp 1 --seed 7', "texts differ"),
        ('"$@" | { head -c 100; cat > /dev/null; }', "texts differ"),
        ('"$@" | head -c 0', "no text"),
        ('"$@" > /dev/null', "no text"),
        ("echo 'error: failed to load model' >&2; exit 0", "no text"),
        ("echo 'error: failed to load model'; exit 0", "no token count"),
    ],
    ids=["seed", "truncated", "empty", "silent", "error-stderr", "error-stdout"],
)
def test_another_seed_and_spoilt_outputs_are_caught(
    generate: Check, sound: list[IdentityRun], smollm: Path, wrapped: str, reason: str
) -> None:
    found = faults(sound, mutant=generate(smollm, wrapped=wrapped))
    assert reason in found["mutant"], found


def test_repeats_of_one_arm_never_fail(
    generate: Check, sound: list[IdentityRun], smollm: Path
) -> None:
    repeats = {f"repeat{number}": generate(smollm) for number in range(REPEATS)}  # minutes
    found = faults(sound, **repeats)
    assert {arm: reason for arm, reason in found.items() if reason} == {}
    assert len(found) == REPEATS + 1
