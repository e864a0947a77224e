import json
import statistics

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.bench import BenchDriver
from coldbench.drivers.documents import json_rows
from tests.unit.driver_outputs import DATA, REAL, output, stub, workload

DRIVER = BenchDriver()
WORK = workload("llama-bench", "-p", "0", "-n", "16", "-r", "3")
OLD = json.loads((DATA / "bench_old.json").read_text(encoding="utf-8"))[0]


def read(name, work=WORK):
    return DRIVER.read(work, output(DATA / name))


def read_rows(*rows, work=WORK):
    return DRIVER.read(work, output("\n".join(map(json.dumps, rows))))


def test_argv_measures_one_first_pass_unless_the_workload_says_else():
    bare = workload("llama-bench")
    assert DRIVER.argv(bare, "/b/p", "/m", ["-lm", "dio"]) == [
        *("/b/p", "-m", "/m", "-o", "jsonl", "-r", "1", "--no-warmup", "-lm", "dio")
    ]
    assert DRIVER.repetitions(bare) == 1
    argv = DRIVER.argv(WORK, "/b/p", "/m", [])
    assert argv.count("-r") == 1
    assert DRIVER.repetitions(WORK) == 3
    long = workload("llama-bench", "--repetitions", "5", "--no-warmup")
    assert DRIVER.argv(long, "/b/p", "/m", [])[3:] == [
        *("-o", "jsonl", "--repetitions", "5", "--no-warmup")
    ]
    assert DRIVER.repetitions(long) == 5


def test_a_real_run_gives_both_rates_and_the_settings():
    work = workload("llama-bench", "-p", "16", "-n", "4")
    result = DRIVER.read(work, output(REAL / "bench.stdout", REAL / "bench.stderr"))
    assert result.status == "ok"
    prompt, generation = result.rows
    assert result.metrics["prompt_tps"] == pytest.approx(prompt["avg_ts"], rel=1e-5)
    assert result.metrics["generation_tps"] == pytest.approx(generation["avg_ts"], rel=1e-5)
    assert result.effective == {
        "load_mode": "mmap",
        "lazy": "off",
        "buffers": {"CPU_Mapped": 92.1},
        "threads": 2,
    }
    assert result.load_s is None
    assert result.notes == []


def test_log_lines_with_brackets_may_stand_before_the_json():
    result = read("bench_log_first.json")
    assert result.status == "ok"
    assert result.metrics == {"generation_tps": 4.0}


def test_mmap_is_comparable_across_old_and_new_spellings():
    old, new = read("bench_old.json"), read("bench_new.json")
    assert old.status == new.status == "ok"
    assert old.metrics == new.metrics == {"generation_tps": 4.0}
    assert old.effective["load_mode"] == new.effective["load_mode"] == "mmap"
    without = read_rows(OLD | {"use_mmap": False})
    direct = read_rows(OLD | {"use_direct_io": True})
    assert without.effective["load_mode"] == "none"
    assert direct.effective["load_mode"] == "dio"


def test_a_mode_that_the_log_resolved_wins_over_the_request():
    row = {key: value for key, value in OLD.items() if key != "use_mmap"} | {"load_mode": "auto"}
    assert "load_mode" not in read_rows(row).effective
    log = "load_tensors: loading model tensors, this can take a while... (load_mode = mmap)\n"
    result = DRIVER.read(WORK, output(json.dumps(row), log))
    assert result.effective["load_mode"] == "mmap"


def test_unknown_keys_are_kept_and_optional_ones_may_be_missing():
    row = {key: value for key, value in OLD.items() if key not in ("stddev_ns", "n_depth")}
    result = read_rows(row | {"new_column": [1, {"x": None}]})
    assert result.status == "ok"
    assert result.rows[0]["new_column"] == [1, {"x": None}]


@pytest.mark.parametrize("key", ["avg_ts", "n_prompt", "n_gen"])
def test_a_missing_essential_key_is_named(key):
    result = read_rows({name: value for name, value in OLD.items() if name != key})
    assert result.status == "invalid"
    assert f"missing key {key} " in result.reason


def test_rates_do_where_times_are_missing_but_samples_must_be_there():
    row = {key: value for key, value in OLD.items() if key != "samples_ns"}
    assert read_rows(row).metrics == {"generation_tps": 4.0}
    del row["samples_ts"]
    assert "missing key samples_ts" in read_rows(row).reason


def test_a_line_per_object_is_read():
    rows, damaged = json_rows((DATA / "bench.jsonl").read_bytes())
    assert [row.get("use_mmap", row.get("load_mode")) for row in rows] == [True, "mmap"]
    assert not damaged


@pytest.mark.parametrize(("name", "whole"), [("bench_cut.json", 1), ("bench_cut.jsonl", 1)])
def test_whole_rows_of_a_cut_output_are_kept_but_it_is_no_result(name, whole):
    result = read(name)
    assert result.status == "invalid"
    assert result.reason == f"partial: JSON cut off after {whole} whole rows"
    assert len(result.rows) == whole
    assert result.metrics == {}


@pytest.mark.parametrize("name", ["bench_old.json", "bench_log_first.json"])
def test_no_cut_of_an_array_is_ok(name):
    whole = (DATA / name).read_bytes().rstrip()
    assert DRIVER.read(WORK, output(whole)).status == "ok"
    for length in range(len(whole)):
        assert DRIVER.read(WORK, output(whole[:length])).status != "ok", length


def test_no_cut_inside_a_line_of_objects_is_ok():
    lines = (DATA / "bench.jsonl").read_bytes().splitlines()
    assert DRIVER.read(WORK, output(lines[0])).status == "ok"
    for length in range(1, len(lines[1])):
        cut = lines[0] + b"\n" + lines[1][:length]
        assert DRIVER.read(WORK, output(cut)).status == "invalid", length


@pytest.mark.parametrize("name", ["bench_header_only.md", "bench_empty_list.json"])
def test_a_table_header_or_an_empty_list_has_no_rows_for_the_tests_asked_for(tmp_path, name):
    work = workload("llama-bench", "-p", "512", "-n", "128")
    result = DRIVER.read(work, stub(tmp_path, f"cat '{DATA / name}'"))
    assert result.status == "void"
    assert result.reason.startswith("no rows for pp512/tg128")


def test_the_first_line_is_shown_where_no_json_is_found():
    result = read("bench_header_only.md")
    assert "stdout begins: | model | size" in result.reason


def test_missing_extra_and_repeated_rows_are_invalid():
    both = workload("llama-bench", "-p", "512", "-n", "16", "-r", "3")
    assert read_rows(OLD, work=both).reason == "no rows for pp512"
    assert "more than one row for tg16" in read_rows(OLD, OLD).reason
    other = read_rows(OLD, OLD | {"n_prompt": 32, "n_gen": 0})
    assert other.status == "invalid"
    assert "was not asked for: [32, 0, 0]" in other.reason
    assert read_rows(OLD | {"n_depth": 64}).status == "invalid"
    deep = workload("llama-bench", "-p", "0", "-n", "16", "-r", "3", "-d", "64")
    assert read_rows(OLD | {"n_depth": 64}, work=deep).status == "ok"
    assert read_rows(OLD, work=deep).status == "invalid"


def test_spread_comes_from_the_samples_and_a_wrong_deviation_is_noted():
    work = workload("llama-bench", "-p", "0", "-n", "16", "-r", "5")
    result = read("bench_stddev_wrong.json", work)
    assert result.status == "ok"
    mean = statistics.fmean(result.rows[0]["samples_ts"])
    assert result.metrics["generation_tps"] == pytest.approx(mean, rel=1e-12)
    assert len(result.notes) == 1
    assert "3722529745" in result.notes[0]
    assert "148894758" in result.notes[0]


def test_a_right_deviation_and_a_single_sample_make_no_note():
    work = workload("llama-bench", "-p", "0", "-n", "16")
    single = OLD | {"samples_ns": [4 * 10**9], "samples_ts": [4.0]}
    assert read_rows(single, work=work).notes == []
    assert read("bench_old.json").notes == []
    spread = OLD | {"samples_ns": [3.99e9, 4e9, 4.01e9], "stddev_ns": 10_000_000}
    assert read_rows(spread).notes == []
    assert read_rows(spread | {"stddev_ns": float("nan")}).notes != []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"avg_ts": 0.0}, "avg_ts of tg16 is 0"),
        ({"avg_ts": float("nan")}, "avg_ts of tg16 is not a finite number"),
        ({"avg_ts": 40.0}, "does not agree with its samples"),
        ({"samples_ns": [4e9, 4e9]}, "2 where 3 were asked for"),
        ({"samples_ns": [4e9, 4e9, 0]}, "samples_ns of tg16 is 0"),
        ({"samples_ns": [4e9, 4e9, -4e9]}, "above 0"),
        ({"samples_ns": None}, "None where 3 were asked for"),
    ],
)
def test_figures_that_cannot_be_right_are_invalid(change, reason):
    result = read_rows(OLD | change)
    assert result.status == "invalid"
    assert reason in result.reason
    assert result.metrics == {}


@pytest.mark.parametrize(
    ("args", "arm_args", "message"),
    [
        (["-p", "128,256"], [], "not one whole number"),
        (["-n", "8-64*2"], [], "not one whole number"),
        (["-p", "1", "-p", "2"], [], "given 2 times"),
        (["-pg", "512,128"], [], "-pg"),
        (["-p", "0", "-n", "0"], [], "nothing to measure"),
        (["-r", "0"], [], "nothing to measure"),
        (["-t", "1,2"], [], "-t has several values"),
        (["-t", "2"], ["--threads", "4"], "-t has several values"),
        ([], ["-lm", "mmap,none"], "-lm has several values"),
        ([], ["-ngl", "0-4"], "-ngl has several values"),
        ([], ["-p", "32"], "arm args: -p"),
        ([], ["-r", "5"], "arm args: -r"),
    ],
)
def test_more_than_one_measurement_a_process_is_refused(args, arm_args, message):
    with pytest.raises(ColdbenchError, match=message):
        DRIVER.check(workload("llama-bench", *args), arm_args)


def test_negative_values_and_patterns_are_no_lists():
    DRIVER.check(workload("llama-bench", "-ngl", "-1"), ["-ot", r"blk\.[0-9]=CPU;x=CPU"])
