import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.base import Output
from coldbench.drivers.registry import DRIVERS, driver_for
from coldbench.records import Exit
from tests.unit.driver_outputs import DATA, OK, REAL, output, stub, workload

BATCHED = workload("llama-batched-bench", "-npp", "16", "-ntg", "4", "-npl", "1")
BENCH = workload("llama-bench", "-p", "0", "-n", "16", "-r", "3")
COMPLETION = workload("llama-completion", prompt="Once upon a time", tokens=24)
COMMAND = workload(
    "command",
    program="engine",
    metrics={"rate": {"regex": r"rate (\S+)"}, "depth": {"json_path": "$.a[0]"}},
    text=r"<(.*)>",
)
ALL = [BATCHED, BENCH, COMPLETION, COMMAND]


def test_every_driver_of_the_study_file_is_registered():
    tested_apart = {"gather", "stream", "gemma-cpp", "llama-results"}
    assert {example.driver for example in ALL} | tested_apart == set(DRIVERS)
    for example in ALL:
        assert driver_for(example) is DRIVERS[example.driver]


def test_a_study_may_name_another_program():
    assert driver_for(BATCHED).program(BATCHED) == "llama-batched-bench"
    renamed = workload("llama-completion", prompt="x", program="llama-cli")
    assert driver_for(renamed).program(renamed) == "llama-cli"
    assert driver_for(COMMAND).program(COMMAND) == "engine"


ARM_ARGS = ["--lazy-mode", "off", "", "it's a $dir", "-ot", r"blk\.0=CPU", "0123", "{x}"]


@pytest.mark.parametrize("example", ALL, ids=lambda example: example.driver)
def test_user_arguments_stand_at_the_end_of_argv_as_written(example):
    argv = driver_for(example).argv(example, "/b/engine", "/m/a b.gguf", ARM_ARGS)
    assert argv[0] == "/b/engine"
    assert argv[len(argv) - len(example.args) - len(ARM_ARGS) :] == [*example.args, *ARM_ARGS]


@pytest.mark.parametrize("example", [BATCHED, BENCH, COMPLETION], ids=lambda it: it.driver)
@pytest.mark.parametrize("flag", ["-m", "--model", "-hf", "-v", "--verbose"])
def test_flags_that_the_driver_sets_are_refused_from_arms_and_workloads(example, flag):
    with pytest.raises(ColdbenchError, match=f"arm args: {flag}: "):
        driver_for(example).check(example, [flag, "x"])
    repeated = example.model_copy(update={"args": (*example.args, flag, "x")})
    with pytest.raises(ColdbenchError, match=f"workload args: {flag}: "):
        driver_for(repeated).check(repeated)


@pytest.mark.parametrize(
    ("example", "flag"),
    [
        (BATCHED, "--output-format"),
        (BATCHED, "--output_format"),
        (BENCH, "-o"),
        (COMPLETION, "--temp"),
        (COMPLETION, "-n"),
        (COMPLETION, "--prompt"),
    ],
)
def test_output_flags_are_refused(example, flag):
    with pytest.raises(ColdbenchError, match="the driver sets this flag itself"):
        driver_for(example).argv(example, "p", "m", [flag, "x"])


@pytest.mark.parametrize("example", [BATCHED, COMPLETION], ids=lambda it: it.driver)
def test_a_workload_may_log_more_but_not_less_and_arms_log_alike(example):
    driver = driver_for(example)
    assert driver.argv(example, "p", "m", []).count("-lv") == 1
    more = example.model_copy(update={"args": (*example.args, "-lv", "5")})
    argv = driver.argv(more, "p", "m", [])
    assert argv.count("-lv") == 1
    assert argv[argv.index("-lv") + 1] == "5"
    for level in ("3", "x"):
        less = example.model_copy(update={"args": (*example.args, "--log-verbosity", level)})
        with pytest.raises(ColdbenchError, match=f"log level '{level}'"):
            driver.check(less)
    with pytest.raises(ColdbenchError, match="arms must log alike"):
        driver.check(example, ["-lv", "5"])


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (Exit(ended="signal", signal=4), "illegal instruction: binary built for another CPU?"),
        (Exit(ended="signal", signal=9), "killed (SIGKILL): out of memory?"),
        (Exit(ended="exit", code=137), "killed (SIGKILL): out of memory?"),
        (Exit(ended="signal", signal=11), "killed by SIGSEGV (segmentation fault)"),
        (Exit(ended="signal", signal=6), "killed by SIGABRT (aborted)"),
        (Exit(ended="signal", signal=99), "killed by signal 99"),
        (Exit(ended="exit", code=1), "exit status 1"),
        (Exit(ended="exit", code=255), "exit status 255"),
        (Exit(ended="time limit"), "did not exit: time limit 600 s"),
        (Exit(ended="output limit"), "did not exit: output limit 16 MiB"),
        (Exit(ended="not started", detail="no such file"), "not started: no such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("example", ALL, ids=lambda it: it.driver)
def test_a_process_that_did_not_end_well_failed_and_its_figures_are_not_used(example, end, reason):
    printed = {
        "llama-batched-bench": REAL / "batched_bench.stdout",
        "llama-bench": DATA / "bench_old.json",
        "llama-completion": REAL / "completion.stdout",
        "command": "rate 12.5",
    }[example.driver]
    result = driver_for(example).read(example, output(printed, exit=end))
    assert result.status == "failed"
    assert reason in result.reason
    assert result.metrics == {}
    assert result.text is None


def test_limits_in_the_reason_are_those_of_the_workload():
    short = BATCHED.model_copy(update={"time_limit": 90.0, "output_limit": 512 * 1024})
    driver = driver_for(short)
    assert driver.read(short, output(exit=Exit(ended="time limit"))).reason.endswith("90 s")
    assert driver.read(short, output(exit=Exit(ended="output limit"))).reason.endswith("0.5 MiB")


def test_a_binary_for_another_cpu_is_named_as_such(tmp_path):
    left = stub(tmp_path, "kill -ILL $$")
    result = driver_for(BENCH).read(BENCH, left)
    assert result.status == "failed"
    assert result.reason == "SIGILL: illegal instruction: binary built for another CPU?"


def test_a_table_printed_before_a_crash_is_kept_raw_but_not_scored(tmp_path):
    left = stub(tmp_path, f"cat '{DATA / 'bench_old.json'}'; exit 139")
    result = driver_for(BENCH).read(BENCH, left)
    assert result.status == "failed"
    assert "SIGSEGV" in result.reason
    assert result.metrics == {}
    assert len(result.rows) == 1


def test_the_engine_s_own_error_line_is_in_the_reason(tmp_path):
    left = stub(tmp_path, "echo 'error: invalid argument: --no-mmap' >&2; echo bye >&2; exit 1")
    result = driver_for(BATCHED).read(BATCHED, left)
    assert result.reason == "exit status 1: error: invalid argument: --no-mmap"


KEYS = sorted(
    {*json.loads((DATA / "bench_old.json").read_text(encoding="utf-8"))[0], "load_mode", "a"}
    | json.loads((REAL / "batched_bench.stdout").read_text(encoding="utf-8")).keys()
)
REAL_OUTPUT = [path.read_bytes() for path in sorted(REAL.glob("*.std*"))]
CASES = [path.read_bytes() for path in sorted(DATA.glob("bench*"))]
BYTES = st.one_of(
    st.binary(max_size=400),
    st.tuples(
        st.sampled_from([*REAL_OUTPUT, *CASES]), st.integers(0, 2000), st.binary(max_size=20)
    ).map(lambda it: it[0][: it[1]] + it[2] + it[0][it[1] + len(it[2]) :]),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(KEYS),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode()),
)


@given(stdout=BYTES, stderr=BYTES, code=st.sampled_from([0, 0, 0, 1]))
def test_no_bytes_make_a_driver_raise_or_leave_what_json_cannot_hold(stdout, stderr, code):
    for example in ALL:
        left = Output(Exit(ended="exit", code=code), stdout, stderr.decode("utf-8", "replace"))
        result = driver_for(example).read(example, left)
        assert (result.status == "ok") == (result.reason == "")
        assert result.status == "failed" if code else result.status != "failed"
        assert all(value > 0 for value in result.metrics.values())
        assert bool(result.metrics) <= (result.status == "ok")
        for kept in (result.rows, result.effective, result.notes, result.reason):
            json.dumps(kept, allow_nan=False, ensure_ascii=False).encode()


def test_deep_nesting_is_no_result_and_no_error():
    result = driver_for(BENCH).read(BENCH, output(b'{"a":' * 100_000, exit=OK))
    assert result.status == "invalid"


@pytest.mark.parametrize("line", [b'{"x\n', b"[1/3] step {y}\n", b"[[\n", b"[{\n", b"{x}\n", b"["])
def test_a_full_output_limit_of_anything_is_read_to_its_end(line):
    left = output(line * (BATCHED.output_limit // len(line)))
    assert driver_for(BENCH).read(BENCH, left).status in ("void", "invalid")
