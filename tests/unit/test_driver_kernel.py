"""What our kernels print is read as a result, a refusal, a wrong result or none at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.base import FEED
from coldbench.drivers.kernel import KernelDriver
from coldbench.records import Exit
from tests.unit.driver_outputs import output, stub, workload

DRIVER = KernelDriver()
ZIPF = {"zipf": {"exponent": 1, "count": 2}}
GATHER = workload("gather", "--batch", "512", trace=ZIPF)
STREAM = workload("stream", "--tokens", "3")
GATHERED = {
    "kernel": "gather",
    "strategy": "random+readahead",
    "ns_per_gather": 812.5,
    "ns_per_page": 1625,
    "pages_unique": 700,
    "hints": 40,
    "hint_errors": 0,
    "gather_s": 0.0125,
    "checksum": "00000000000000a7",
}
STREAMED = {
    "kernel": "stream",
    "s_per_token": 0.5,
    "first_token_s": 0.75,
    "request_s": 1.75,
    "bytes_per_token": 0,
    "overlap": 0,
    "retained_bytes": 0,
    "buffers": 2,
    "checksum": "17",
    "checksums": ["1", "2", "3"],
}


def read(row, work=GATHER, **more):
    text = row if isinstance(row, str) else json.dumps(row) + "\n"
    return DRIVER.read(work, output(text, **more))


def exited(code, stdout="", stderr="", work=GATHER):
    return DRIVER.read(work, output(stdout, stderr, Exit(ended="exit", code=code)))


# --- command lines ------------------------------------------------------------------------------


def test_the_feed_stands_in_the_command_line_until_it_is_known():
    assert DRIVER.argv(GATHER, "/b/gather", "/m/a b.gguf", ["--strategy", "plain"]) == [
        *("/b/gather", "--model", "/m/a b.gguf", "--feed", FEED),
        *("--batch", "512", "--strategy", "plain"),
    ]
    assert DRIVER.program(GATHER) == "gather"
    assert DRIVER.program(workload("stream", program="stream-old")) == "stream-old"
    assert DRIVER.probe(STREAM, "/b/stream", "/m", []) is None
    assert DRIVER.repetitions(STREAM) == 1


@pytest.mark.parametrize("flag", ["--model", "--feed"])
def test_flags_of_the_driver_are_refused_in_workload_and_arm(flag):
    work = workload("gather", flag, "x", trace=ZIPF)
    with pytest.raises(ColdbenchError, match=f"workload args: {flag}: the driver sets this flag"):
        DRIVER.check(work)
    with pytest.raises(ColdbenchError, match=f"arm args: {flag}: the driver sets this flag"):
        DRIVER.argv(GATHER, "p", "m", [flag, "x"])


# --- results ------------------------------------------------------------------------------------


def test_figures_checksum_and_the_rest_are_read():
    result = read(GATHERED)
    assert (result.status, result.reason, result.text) == ("ok", "", b"00000000000000a7")
    assert result.metrics == {
        "ns_per_gather": 812.5,
        "ns_per_page": 1625.0,
        "pages_unique": 700.0,
        "hints": 40.0,
    }
    assert result.effective["strategy"] == "random+readahead"
    assert result.effective["hint_errors"] == 0
    assert "checksum" not in result.effective
    assert result.rows == [GATHERED]


def test_a_count_of_buffers_is_not_taken_for_the_buffers_of_an_engine():
    result = read(STREAMED, STREAM)
    assert result.effective["buffer_count"] == 2
    assert not {"buffers", "checksum", "checksums"} & set(result.effective)
    assert result.text == b"17"


def test_a_result_without_a_checksum_has_no_text():
    assert read({key: GATHERED[key] for key in ("ns_per_page",)}).text is None
    assert read(GATHERED | {"checksum": None}).text is None
    assert read(GATHERED | {"checksum": 167}).text == b"167"


def test_what_was_not_had_is_left_out():
    result = read(GATHERED | {"ns_per_page": None, "hints": None})
    assert set(result.metrics) == {"ns_per_gather", "pages_unique"}
    assert "hints" not in result.effective


@pytest.mark.parametrize("name", ["bytes_per_token", "overlap", "retained_bytes"])
def test_zero_is_a_figure_where_nothing_may_be_read_hidden_or_kept(name):
    result = read(STREAMED, STREAM)
    assert result.status == "ok"
    assert result.metrics[name] == 0.0
    assert read(STREAMED | {name: -1}, STREAM).reason == f"{name} is -1: a figure must be above 0"
    assert read(STREAMED | {name: False}, STREAM).reason == f"{name} is not a finite number: False"


def test_no_hint_is_a_figure_too():
    assert read(GATHERED | {"hints": 0}).metrics["hints"] == 0.0


@pytest.mark.parametrize("name", ["ns_per_gather", "ns_per_page", "pages_unique"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0", "is 0: a figure must be above 0"),
        ("-2.5", "is -2.5: a figure must be above 0"),
        ("nan", "is not a finite number: 'nan'"),
        ("inf", "is not a finite number: 'inf'"),
        ("1e999", "is not a finite number: '1e999'"),
        ("true", "is not a finite number: True"),
        ('"3"', "is not a finite number: '3'"),
    ],
)
def test_figures_that_cannot_be_right_are_invalid(name, value, reason):
    text = json.dumps(GATHERED | {name: "HERE"}).replace('"HERE"', value)
    result = read(text)
    assert (result.status, result.reason) == ("invalid", f"{name} {reason}")
    assert result.metrics == {}


@pytest.mark.parametrize(
    ("stdout", "status", "reason"),
    [
        ("", "void", "no result: exit 0 with 0 JSON objects"),
        ("done\n", "void", "no result: exit 0 with 0 JSON objects"),
        (2 * (json.dumps(GATHERED) + "\n"), "void", "no result: exit 0 with 2 JSON objects"),
        (json.dumps(GATHERED)[:40], "invalid", "partial: JSON cut off after 0 whole rows"),
        ('{"kernel": "gather"}', "void", "no result: a JSON object without figures"),
        ('{"s_per_token": 1.5}', "void", "no result: a JSON object without figures"),
    ],
)
def test_exit_0_without_one_whole_object_of_figures_is_no_result(stdout, status, reason):
    result = read(stdout)
    assert (result.status, result.reason, result.metrics) == (status, reason, {})


# --- refusals and failures ----------------------------------------------------------------------


def test_what_the_machine_cannot_do_is_refused_in_the_kernel_s_words():
    words = "fio is not on the PATH: install the package fio"
    result = exited(3, json.dumps({"unsupported": words}) + "\n")
    assert (result.status, result.reason) == ("refused", words)


@pytest.mark.parametrize("stdout", ["", "{}", '{"kernel": "gather"}', '{"unsupported": ""}', "[]"])
def test_exit_3_without_a_reason_is_a_failure(stdout):
    result = exited(3, stdout, "gather: what now\n")
    assert (result.status, result.reason) == ("failed", "exit status 3: gather: what now")


def test_wrong_usage_is_refused():
    result = exited(2, "", "gather: --depth: 0 is not 1..4096\nusage: gather ...\n")
    assert (result.status, result.reason) == ("refused", "gather: --depth: 0 is not 1..4096")
    silent = exited(2)
    assert (silent.status, silent.reason) == ("failed", "exit status 2")


def test_a_failure_is_told_in_the_kernel_s_words_once():
    result = exited(1, "", "gather: /m/a.gguf: No such file or directory\n")
    assert (result.status, result.reason) == (
        "failed",
        "exit status 1: gather: /m/a.gguf: No such file or directory",
    )
    twice = exited(1, "", "stream: I/O error\n")
    assert twice.reason == "exit status 1: stream: I/O error"
    assert exited(1).reason == "exit status 1"


def test_the_object_of_a_program_that_failed_gives_no_figures():
    result = exited(1, json.dumps(GATHERED))
    assert (result.status, result.metrics, result.text) == ("failed", {}, None)


def test_real_processes_end_as_they_say(tmp_path):
    row = json.dumps(GATHERED)
    for script, status, reason in (
        (f"echo '{row}'", "ok", ""),
        ('echo \'{"unsupported": "no ring"}\'; exit 3', "refused", "no ring"),
        (f"echo '{row}'; kill -SEGV $$", "failed", "killed by SIGSEGV (segmentation fault)"),
        (f"echo '{row}'; kill -KILL $$", "failed", "killed (SIGKILL): out of memory?"),
    ):
        result = DRIVER.read(GATHER, stub(tmp_path, script))
        assert (result.status, result.reason) == (status, reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)
NAMES = st.sampled_from([*GATHERED, "unsupported", "hint_error", "buffers"])


@given(
    st.binary(max_size=80) | st.dictionaries(NAMES, JSON), st.integers(0, 4), st.text(max_size=9)
)
def test_reading_never_raises_and_an_ok_result_has_figures(printed, code, stderr):
    stdout = printed if isinstance(printed, bytes) else json.dumps(printed).encode()
    result = exited(code, stdout, stderr)
    assert (result.status == "ok") == bool(result.metrics)
    assert bool(result.reason) == (result.status != "ok")
    assert code == 0 or result.status in {"failed", "refused"}
    json.dumps(result.rows, allow_nan=False)
