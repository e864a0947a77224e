import json

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.batched_bench import BatchedBenchDriver
from tests.unit.driver_outputs import REAL, output, workload

DRIVER = BatchedBenchDriver()
ROW = json.loads((REAL / "batched_bench.stdout").read_text(encoding="utf-8"))


def work(prompt="16", generated="4", sequences="1", *more):
    args = ("-npp", prompt, "-ntg", generated, "-npl", sequences, *more)
    return workload("llama-batched-bench", *args)


def read(row, work_=None):
    return DRIVER.read(work_ or work(), output(json.dumps(row) + "\n\n"))


def test_argv_asks_for_json_and_a_log_that_shows_the_settings_in_force():
    assert DRIVER.argv(work(), "/b/p", "/m", ["-lzm", "on"]) == [
        *("/b/p", "-m", "/m", "--output-format", "jsonl", "-lv", "4"),
        *("-npp", "16", "-ntg", "4", "-npl", "1", "-lzm", "on"),
    ]


def test_a_real_run_gives_both_rates_the_load_time_and_the_settings():
    result = DRIVER.read(
        work(), output(REAL / "batched_bench.stdout", REAL / "batched_bench.stderr")
    )
    assert result.status == "ok"
    assert result.metrics == {"prompt_tps": ROW["speed_pp"], "generation_tps": ROW["speed_tg"]}
    stderr = (REAL / "batched_bench.stderr").read_text(encoding="utf-8")
    assert f"load time = {result.load_s * 1e3:10.2f} ms" in stderr
    assert result.effective == {
        "load_mode": "mmap",
        "lazy": "off",
        "buffers": {"CPU_Mapped": 92.1},
        "threads": 2,
    }
    assert result.rows == [ROW]
    assert result.notes == []
    assert result.tokens == 4


def test_tokens_are_those_of_all_sequences():
    row = ROW | {"pl": 2, "n_kv": 2 * ROW["n_kv"]}
    for rate, time, count in (("speed_pp", "t_pp", 2 * 16), ("speed_tg", "t_tg", 2 * 4)):
        row[rate] = count / row[time]
    row["speed"] = 2 * (16 + 4) / row["t"]
    result = DRIVER.read(work("16", "4", "2"), output(json.dumps(row).encode(), ""))
    assert (result.status, result.reason, result.tokens) == ("ok", "", 8)


@pytest.mark.parametrize("stdout", [b"", b"\n", b"|    PP |     TG |\n"])
def test_exit_0_without_json_is_no_result(stdout):
    result = DRIVER.read(work(), output(stdout, REAL / "batched_bench.stderr"))
    assert result.status == "void"
    assert result.reason.startswith(
        "no result: exit 0 without JSON (the engine does not flush its log at exit)"
    )


def test_a_test_that_the_context_cannot_hold_is_told_as_the_reason():
    left = output(REAL / "context_too_small.stdout", REAL / "context_too_small.stderr")
    result = DRIVER.read(work("600"), left)
    assert result.status == "void"
    assert "needs 604 tokens, the context holds 256" in result.reason
    shared = work("100", "50", "2", "-pps")
    assert "flush" in DRIVER.read(shared, left).reason
    assert "needs 300 tokens" in DRIVER.read(work("100", "50", "2"), left).reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"speed_pp": 0}, "speed_pp is 0"),
        ({"speed_tg": -1.5}, "speed_tg is -1.5"),
        ({"t_tg": 0.0}, "t_tg is 0"),
        ({"speed_tg": "12"}, "speed_tg is not a finite number"),
        ({"speed_tg": True}, "speed_tg is not a finite number"),
        ({"speed_tg": float("nan")}, "speed_tg is not a finite number"),
        ({"speed_pp": float("inf")}, "speed_pp is not a finite number"),
        ({"speed_pp": 10**400}, "speed_pp is not a finite number"),
        ({"speed_pp": ROW["speed_pp"] * 2}, "does not agree with 16 tokens"),
        ({"pp": 17}, "pp is 17, not 16"),
        ({"pl": 2}, "pl is 2, not 1"),
    ],
)
def test_a_row_that_cannot_be_right_is_invalid(change, reason):
    result = read(ROW | change)
    assert result.status == "invalid"
    assert reason in result.reason
    assert result.metrics == {}
    assert len(result.rows) == 1


@pytest.mark.parametrize("key", ["speed_pp", "speed_tg", "t_pp", "pp", "tg", "pl"])
def test_a_missing_key_is_named(key):
    result = read({name: value for name, value in ROW.items() if name != key})
    assert result.status == "invalid"
    assert f"missing key {key} " in result.reason


def test_the_c_library_s_spelling_of_nan_is_read():
    text = json.dumps(ROW).replace(str(ROW["speed_tg"]), "-nan")
    result = DRIVER.read(work(), output(text))
    assert result.status == "invalid"
    assert "speed_tg is not a finite number" in result.reason
    only_prompt = text.replace('"tg": 4', '"tg": 0')
    result = DRIVER.read(work(generated="0"), output(only_prompt))
    assert result.status == "ok"
    assert result.metrics == {"prompt_tps": ROW["speed_pp"]}


def test_a_second_row_is_invalid():
    result = DRIVER.read(work(), output(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n"))
    assert result.status == "invalid"
    assert result.reason == "2 rows where one test was asked for"
    same_line = DRIVER.read(work(), output(json.dumps(ROW) * 2))
    assert same_line.status == "invalid"


def test_a_cut_row_is_invalid_whether_or_not_a_whole_one_stands_before_it():
    text = json.dumps(ROW)
    for stdout, whole in ((text[:100], 0), (f"{text}\n{text[:100]}", 1)):
        result = DRIVER.read(work(), output(stdout))
        assert result.status == "invalid"
        assert result.reason == f"partial: JSON cut off after {whole} whole rows"
        assert len(result.rows) == whole


def test_a_shared_prompt_counts_once():
    shared = ROW | {"pl": 2, "t_pp": 2.0, "speed_pp": 8.0, "t_tg": 2.0, "speed_tg": 4.0}
    assert read(shared, work("16", "4", "2", "-pps")).metrics == {
        "prompt_tps": 8.0,
        "generation_tps": 4.0,
    }
    assert read(shared, work("16", "4", "2")).status == "invalid"


@pytest.mark.parametrize("value", ["128,256", "8-16", "x", "-1", ""])
def test_lists_and_ranges_are_refused_at_plan_time(value):
    for position in range(3):
        sizes = ["16", "4", "1"]
        sizes[position] = value
        with pytest.raises(ColdbenchError, match="not one whole number"):
            DRIVER.check(work(*sizes))


def test_missing_repeated_and_empty_tests_are_refused():
    with pytest.raises(ColdbenchError, match="-npl is missing"):
        DRIVER.check(workload("llama-batched-bench", "-npp", "16", "-ntg", "4"))
    with pytest.raises(ColdbenchError, match="-npp is given 2 times"):
        DRIVER.check(work("16", "4", "1", "-npp", "32"))
    with pytest.raises(ColdbenchError, match="nothing to measure"):
        DRIVER.check(work("0", "0"))
    with pytest.raises(ColdbenchError, match="nothing to measure"):
        DRIVER.check(work(sequences="0"))


def test_an_arm_must_not_change_the_work():
    with pytest.raises(ColdbenchError, match="arm args: -npp"):
        DRIVER.check(work(), ["-npp", "32"])
