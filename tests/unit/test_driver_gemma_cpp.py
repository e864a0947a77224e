"""The gemma.cpp driver: what it refuses, what it reads, and a scripted engine in our launcher."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.base import Output, Result
from coldbench.drivers.gemma_cpp import MARKS, GemmaCppDriver
from coldbench.drivers.gemma_effects import gemma_effects
from coldbench.drivers.registry import marks_of
from coldbench.measure.launcher import environment_for, launch
from coldbench.records import Exit, Io, Memory
from tests.gemma import write_engine, write_weights
from tests.unit.driver_outputs import OK, output, workload
from tests.unit.fabricated_runs import fabricated_run

DRIVER = GemmaCppDriver()
WORK = workload("gemma-cpp", "--num_threads", "2", prompt="Tell me of the sea", tokens=20)
MIB = 2**20

PREFILL = (
    "\n\n[ Timing info ] Prefill: 48 ms for 17 prompt tokens (349.17 tokens / sec); "
    "Time to first token: 71 ms\n"
)
GENERATE = "\n[ Timing info ] Generate: 512 ms for 20 tokens (39.03 tokens / sec)\n"
STDERR = f"\n[ Reading prompt ] {PREFILL}{GENERATE}"
TEXT = "The sea... is grey.\n\nAnd cold, they say."
STDOUT = f"{'.' * 18}\n\n{TEXT}\n\n"


def read(stdout: str = STDOUT, stderr: str = STDERR, end: Exit = OK, **seen: float) -> Result:
    made = output(stdout, stderr, end)
    return DRIVER.read(WORK, Output(end, made.stdout, made.stderr, marked_s=seen))


# --- the command line ----------------------------------------------------------------------------


def test_the_command_line_ends_with_the_users_arguments() -> None:
    argv = DRIVER.argv(WORK, "/b/gemma", "/m/w.sbs", ["--map", "0"])
    assert argv == [
        *("/b/gemma", "--weights", "/m/w.sbs", "--prompt", "Tell me of the sea"),
        *("--max_generated_tokens", "20", "--verbosity", "1", "--num_threads", "2", "--map", "0"),
    ]
    assert DRIVER.program(WORK) == "gemma"
    assert DRIVER.probe(WORK, "p", "m", ["--map", "0"]) is None


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([], "--map: must be 0 or 1"),
        (["--map", "-1"], "--map: must be 0 or 1"),
        (["--map", "yes"], "--map: must be 0 or 1"),
        (["--map"], "--map: lacks its value"),
        (["--map=1"], "--map=1: is no flag of gemma.cpp"),
        (["--map", "1", "--mapp", "1"], "--mapp: is no flag of gemma.cpp, which would ignore it"),
        (["--map", "1", "-t", "4"], "-t: is no flag of gemma.cpp"),
        (["--map", "1", "--max-generated-tokens", "4"], "is no flag of gemma.cpp"),
        (["--map", "1", "--map", "0"], "--map: is given twice"),
        (["--map", "1", "--num_threads", "4"], "--num_threads: is given twice"),
        (["--map", "1", "--to_bf16", "1"], "--to_bf16: 1 makes the engine ignore --map 1"),
        (["--map", "1", "--weights", "x"], "--weights: the driver sets this flag itself"),
        (["--map", "1", "--verbosity", "0"], "--verbosity: the driver sets this flag itself"),
        (["--map", "1", "--help", "1"], "--help: is no flag of gemma.cpp"),
    ],
)
def test_what_the_engine_would_ignore_or_choose_is_refused(args: list[str], reason: str) -> None:
    with pytest.raises(ColdbenchError) as caught:
        DRIVER.argv(WORK, "p", "m", args)
    assert reason in str(caught.value)


def test_what_is_well_said_is_let_through() -> None:
    DRIVER.check(WORK, ["--map", "0", "--to_bf16", "1"])
    patched = workload("gemma-cpp", "--stream", "1", prompt="x", flags=["--stream"])
    DRIVER.check(patched, ["--map", "1"])
    with pytest.raises(ColdbenchError, match="take it for a flag"):
        DRIVER.check(workload("gemma-cpp", prompt="--map"), ["--map", "1"])


# --- its output ----------------------------------------------------------------------------------


def test_an_output_gives_rates_times_and_the_text_alone() -> None:
    result = read(load_s=1.5, first_token_s=1.571)
    assert (result.status, result.tokens, result.notes) == ("ok", 20, [])
    assert result.text == TEXT.encode()
    assert result.load_s == 1.5
    # the printed rates are finer than whole milliseconds here
    assert result.metrics == {
        "prompt_tps": 349.17,
        "generation_tps": 39.03,
        "first_token_s": 1.571,
    }
    assert result.effective == {"prompt_tokens": 18}
    assert result.rows[0]["prefill_first_ms"] == 71


def test_a_slow_rate_is_taken_from_the_milliseconds() -> None:
    slow = "Generate: 102720 ms for 8 tokens (0.08 tokens / sec)"
    result = read(stderr=PREFILL + slow)
    assert result.metrics["generation_tps"] == pytest.approx(8 / 102.72, rel=1e-9)


def test_a_time_below_a_millisecond_is_taken_from_the_rate() -> None:
    quick = PREFILL.replace("48 ms", "0 ms").replace("349.17", "25000.00")
    assert read(stderr=quick + GENERATE).metrics["prompt_tps"] == 25000.0


def test_times_that_nobody_took_are_missing() -> None:
    result = read()
    assert result.load_s is None
    assert "first_token_s" not in result.metrics


def test_a_text_that_ends_early_is_told() -> None:
    result = read(stderr=STDERR.replace("20 tokens", "7 tokens").replace("39.03", "13.67"))
    assert (result.status, result.tokens) == ("ok", 7)
    assert result.notes == ["7 of 20 tokens generated: the model ended its text"]
    assert result.metrics["generation_tps"] == 13.67


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason"),
    [
        ("", "", "void", "no result: exit 0 without a line of figures"),
        (STDOUT, PREFILL, "void", "no result"),
        ("> ", "", "void", "no result"),
        ("", "Generate: 0 ms for 0 tokens (0.00 tokens / sec)", "invalid", "0 tokens generated"),
        (STDOUT, GENERATE, "invalid", "no line of the time that the prompt took"),
        (STDOUT, STDERR.replace("20 tokens", "21 tokens"), "invalid", "21 tokens generated where"),
        (STDOUT, STDERR.replace("39.03", "78.06"), "invalid", "20 tokens in 512 ms are not 78.06"),
        (STDOUT, STDERR.replace("349.17", "0.00"), "invalid", "17 tokens in 48 ms are not 0.00"),
        (STDOUT, STDERR.replace("349.17", "-nan"), "invalid", "no line of the time"),
        ("." * 18 + "\n\n", STDERR, "invalid", "no text: the model ended it at once"),
        ("." * 18, STDERR, "invalid", "no text"),
        ("....\n\n" + "<pad>" * 20, STDERR, "invalid", "degenerate text"),
    ],
)
def test_outputs_without_a_usable_result(
    stdout: str, stderr: str, status: str, reason: str
) -> None:
    result = read(stdout, stderr)
    assert result.status == status
    assert reason in result.reason
    assert not result.metrics


def test_a_failure_says_the_engines_words_whatever_was_printed() -> None:
    aborted = Exit(ended="signal", signal=6)
    said = "Warning at a.cc:1: slow\nAbort at io.cc:80: Failed to open /m/w.sbs\n"
    result = read("", said, aborted)
    assert result.status == "failed"
    assert result.reason == (
        "killed by SIGABRT (aborted): Abort at io.cc:80: Failed to open /m/w.sbs"
    )
    assert read(end=aborted).status == "failed"
    assert read("", "", Exit(ended="exit", code=3)).reason == "exit status 3"


# --- the scripted engine, in the real launcher ---------------------------------------------------

RunEngine = Callable[..., Result]


@pytest.fixture
def run_engine(launcher: Path, tmp_path: Path) -> RunEngine:
    def run(settings: str = "", weights: bytes | None = None, *, mapped: str = "0") -> Result:
        model = write_weights(tmp_path / "w.sbs", MIB)
        if weights is not None:
            model.write_bytes(weights)
        program = write_engine(tmp_path / "build", settings)
        argv = DRIVER.argv(WORK, str(program), str(model), ["--map", mapped])
        out, err = tmp_path / "out", tmp_path / "err"
        launched = launch(
            launcher,
            argv,
            environment_for({}, tmp_path / "home"),
            stdout=out,
            stderr=err,
            time_limit_s=60,
            output_limit_bytes=MIB,
            marks=[*marks_of(WORK).values()],
        )
        seen = dict(zip(MARKS, launched.marks, strict=True))
        return DRIVER.read(
            WORK, Output(launched.exit, out.read_bytes(), err.read_text(), marked_s=seen)
        )

    return run


def test_loading_and_the_first_token_are_timed_from_outside(run_engine: RunEngine) -> None:
    result = run_engine("LOAD_S = 0.4\nPREFILL_S = 0.3\nGENERATE_S = 0.2")
    assert result.status == "ok", result.reason
    assert result.text is not None
    assert result.text.startswith(b"word")
    assert result.effective == {"prompt_tokens": 6}
    assert result.load_s is not None
    assert result.load_s > 0.4
    assert 0.4 <= result.metrics["first_token_s"] - result.load_s < 0.9
    assert 5 / 0.6 < result.metrics["prompt_tps"] < 5 / 0.3
    assert 20 / 0.5 < result.metrics["generation_tps"] <= 20 / 0.2


def test_its_traps_are_told_apart(run_engine: RunEngine) -> None:
    assert run_engine("END = 6").notes == ["6 of 20 tokens generated: the model ended its text"]
    assert run_engine("LINES = False").status == "void"
    damaged = run_engine(weights=b"GGUF" + bytes(100))
    assert damaged.status == "failed"
    assert "SIGABRT" in damaged.reason
    assert "BlobStore header magic 46554747 does not match 0a534253" in damaged.reason
    assert "Zero-sized file" in run_engine(weights=b"").reason


# --- what must be seen ---------------------------------------------------------------------------


def seen(mapped: str, anon: float, file: float, rchar: float, **more: object) -> list[str]:
    run = fabricated_run("a", 1, host={"memory_bytes": 16 * 2**30}).model_copy(
        update={
            "memory": Memory(
                anon_at_peak_bytes=int(anon * MIB), file_at_peak_bytes=int(file * MIB), **more
            ),
            "io": Io(rchar_bytes=int(rchar * MIB)),
        }
    )
    args = ["--weights", "w", "--map", mapped]
    return [one.what for one in gemma_effects(args, run, int(420.75 * MIB)) if not one.ok]


def test_read_and_mapped_weights_are_told_apart_by_memory_and_reads() -> None:
    read, mapped = (505, 5, 420.7), (64, 421, 5.0)  # as measured with the 270M model
    assert seen("0", *read) == []
    assert seen("1", *mapped) == []
    assert seen("0", *mapped) == ["weights read", "memory of its own"]
    assert seen("1", *read) == ["weights not read", "mapped memory"]


def test_under_a_budget_only_what_was_read_tells() -> None:
    assert seen("1", 64, 10, 900, budget_bytes=300 * MIB) == []
    assert seen("0", 250, 5, 5.0, budget_bytes=300 * MIB) == ["weights read"]


def test_weights_too_small_to_tell_are_not_judged() -> None:
    run = fabricated_run("a", 1).model_copy(update={"io": Io(rchar_bytes=0)})
    assert [*gemma_effects(["--map", "0"], run, MIB)] == []
