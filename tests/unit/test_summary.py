import logging
import math

import numpy as np
import pytest

from coldbench.analysis.summary import left_out, load_runs, pairs, summarise, tidy
from coldbench.common.errors import ColdbenchError
from coldbench.records import FORMAT
from tests.unit.fabricated_runs import cells_of, fabricated_run


def lines(*runs):
    return "".join(run.model_dump_json(by_alias=True) + "\n" for run in runs).encode()


def frame_of(runs):
    return tidy(runs, cells_of(runs))


def prompt_runs(values, *, pass_=1):
    """Runs by arm: {arm: [rate of block 1, of block 2, ...]}; None stands for no such run."""
    return [
        fabricated_run(arm, block, pass_=pass_, metrics={"prompt_tps": rate})
        for arm, rates in values.items()
        for block, rate in enumerate(rates, start=1)
        if rate is not None
    ]


def paired(frame, treatment="lazy", control="eager", metric="prompt_tps"):
    return pairs(
        frame,
        model="gemma",
        workload="pp512",
        state="cold",
        metric=metric,
        treatment=treatment,
        control=control,
    )


# --- reading records ----------------------------------------------------------------------------


def test_records_come_back_as_they_were_written(tmp_path):
    runs = [fabricated_run("lazy", 1), fabricated_run("eager", 1)]
    (tmp_path / "a.jsonl").write_bytes(lines(runs[0]))
    (tmp_path / "b.jsonl").write_bytes(lines(runs[1]))
    assert load_runs([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]) == runs


def test_a_last_line_cut_wherever_is_left_out_with_a_note(tmp_path, caplog):
    whole, cut = fabricated_run("lazy", 1), lines(fabricated_run("eager", 1, reason="größer"))
    file = tmp_path / "block.jsonl"
    with caplog.at_level(logging.WARNING):
        inside_a_letter = cut.index("ß".encode()) + 1
        for length in (*range(1, len(cut) - 1, 40), inside_a_letter, len(cut) - 2):
            file.write_bytes(lines(whole) + cut[:length])
            assert load_runs([file]) == [whole]
    assert f"{file}:2" in caplog.text


def test_a_whole_last_line_without_its_newline_counts(tmp_path):
    run = fabricated_run("lazy", 1)
    (tmp_path / "runs.jsonl").write_bytes(lines(run).rstrip())
    assert load_runs([tmp_path / "runs.jsonl"]) == [run]


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: good[: len(good) // 2] + b"\n" + good,
        lambda good: good[: len(good) // 2] + b"\n",
        lambda good: good + b"[]\n",
        lambda good: good.replace(b'"block":1', b'"block":"one"'),
        lambda good: good.replace(b'"arm":', b'"unknown":1,"arm":'),
        lambda good: good.replace(b'"format":%d' % FORMAT, b'"format":99'),
        lambda good: good.replace(b'"argv"', b'"\xff"'),
    ],
    ids=["cut inside", "cut with newline", "not a record", "type", "key", "format", "utf-8"],
)
def test_any_other_damage_is_an_error_that_names_file_and_line(tmp_path, damage):
    file = tmp_path / "block.jsonl"
    first = lines(fabricated_run("eager", 1))
    file.write_bytes(first + damage(lines(fabricated_run("lazy", 1))))
    with pytest.raises(ColdbenchError, match=r"block\.jsonl:[23]: ") as caught:
        load_runs([file])
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ColdbenchError, match=r"none\.jsonl: cannot be read"):
        load_runs([tmp_path / "none.jsonl"])


def test_a_record_that_stands_twice_is_an_error_naming_both_places(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(lines(fabricated_run("lazy", 1)))
    with pytest.raises(ColdbenchError, match=r"b\.jsonl:1: .* a?.*/a\.jsonl:1"):
        load_runs([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


# --- the tidy table -----------------------------------------------------------------------------


def test_every_figure_of_a_record_is_one_row():
    run = fabricated_run(
        "lazy",
        2,
        pass_=3,
        metrics={"prompt_tps": 621.5, "generation_tps": 93.0},
        load_s=0.4,
        memory={
            "peak_rss_bytes": 900,
            "anon_at_peak_bytes": 500,
            "file_at_peak_bytes": 400,
            "server_peak_rss_bytes": 700,
        },
        io={"read_bytes": 640, "major_faults": 9864},
        tokens=32,
        before={"table_bytes": 0},
        after={"table_bytes": 128},
        table_total_bytes=512,
    )
    frame = frame_of([run])
    assert dict(zip(frame["metric"], frame["value"], strict=True)) == {
        "prompt_tps": 621.5,
        "generation_tps": 93.0,
        "wall_s": 2.0,
        "load_s": 0.4,
        "peak_rss_bytes": 900,
        "server_peak_rss_bytes": 700,
        "anon_at_peak_bytes": 500,
        "file_at_peak_bytes": 400,
        "read_bytes": 640,
        "read_bytes_per_token": 20,
        "major_faults": 9864,
        "table_residency": 0.25,
        "table_residency_before": 0,
    }
    row = frame.iloc[0]
    assert (row["block"], row["pass"], row["position"], row["status"]) == (2, 3, 1, "ok")
    assert row["started"] == "2026-11-30T10:00:02Z"


def test_what_a_record_lacks_is_missing_and_never_zero():
    run = fabricated_run("lazy", 1, peak_rss=None, table_after=None, table_total=None)
    frame = frame_of([run]).set_index("metric")["value"]
    missing = ("peak_rss_bytes", "table_residency", "load_s", "anon_at_peak_bytes")
    assert frame[list(missing)].isna().all()


@pytest.mark.parametrize("status", ["failed", "invalid", "void", "refused"])
def test_only_runs_that_are_ok_give_figures(status):
    runs = prompt_runs({"lazy": [100.0]})
    runs.append(fabricated_run("lazy", 2, status=status, metrics={"prompt_tps": 1.0}))
    frame = frame_of(runs)
    bad = frame[frame["status"] == status]
    assert set(bad["metric"]) == set(frame["metric"])
    assert bad["value"].isna().all()


def test_a_figure_that_is_no_number_is_missing():
    frame = frame_of(prompt_runs({"lazy": [math.inf, math.nan, 5.0]}))
    assert frame.loc[frame["metric"] == "prompt_tps", "value"].dropna().tolist() == [5.0]


def test_runs_of_cells_that_the_plan_no_longer_has_are_left_out_and_counted():
    current = fabricated_run("lazy", 1)
    # The same names over other content: the cell's key tells.
    former = fabricated_run("lazy", 1).model_copy(update={"cell": "other-model-content"})
    greedy = fabricated_run("lazy", 0, state="unmeasured")
    cells = cells_of([current])
    frame = tidy([current, former, greedy], cells)
    assert frame["run"].nunique() == 1
    assert left_out([current, former, greedy], cells) == 1


def test_the_plans_names_replace_those_of_the_record():
    run = fabricated_run("old-name", 1)
    frame = tidy([run], {run.cell: ("gemma", "pp512", "new-name")})
    assert set(frame["arm"]) == {"new-name"}


def test_the_order_of_the_records_does_not_change_the_table():
    runs = prompt_runs({"lazy": [1.0, 2.0, 3.0], "eager": [4.0, 5.0, 6.0]})
    here, there = frame_of(runs), frame_of(runs[::-1])
    assert here.equals(there)


# --- the summary --------------------------------------------------------------------------------


def test_a_cells_summary_has_its_spread_and_counts_its_runs_by_status():
    runs = prompt_runs({"lazy": [100.0, 40.0, 70.0, 90.0]})
    runs.append(fabricated_run("lazy", 5, status="void"))
    runs.append(fabricated_run("lazy", 5, attempt=2, status="void"))
    runs.append(fabricated_run("lazy", 5, attempt=3, status="failed"))
    summary = summarise(frame_of(runs)).set_index("metric").loc["prompt_tps"]
    assert summary[["n", "median", "min", "max", "mean"]].tolist() == [4, 80, 40, 100, 75]
    assert summary[["ok", "failed", "invalid", "void", "refused"]].tolist() == [4, 1, 0, 2, 0]


def test_a_cell_without_a_figure_has_n_zero_and_no_median():
    runs = [fabricated_run("lazy", 1, status="failed"), *prompt_runs({"eager": [5.0]})]
    summary = summarise(frame_of(runs)).set_index(["arm", "metric"])
    row = summary.loc[("lazy", "prompt_tps")]
    assert row["n"] == 0
    assert math.isnan(row["median"])


def test_no_records_make_an_empty_table_and_summary():
    frame = tidy([], {})
    assert summarise(frame).empty
    assert paired(frame).blocks == ()


# --- pairs --------------------------------------------------------------------------------------


def test_values_are_paired_by_block():
    found = paired(frame_of(prompt_runs({"lazy": [1.0, 2.0, 3.0], "eager": [4.0, 5.0, 6.0]})))
    assert found.blocks == (1, 2, 3)
    assert found.treatment.tolist() == [1, 2, 3]
    assert found.control.tolist() == [4, 5, 6]
    assert found.interleaved


def test_a_block_in_which_one_arm_failed_is_no_pair():
    runs = prompt_runs({"lazy": [1.0, None, 3.0, 7.0], "eager": [4.0, 5.0, 6.0, None]})
    runs.append(fabricated_run("lazy", 2, status="failed"))
    found = paired(frame_of(runs))
    assert found.blocks == (1, 3)
    assert found.interleaved


def test_a_later_attempt_takes_the_place_of_a_void_one():
    runs = prompt_runs({"lazy": [1.0, 2.0], "eager": [4.0, 5.0]})
    runs.append(fabricated_run("lazy", 3, status="void"))
    runs.append(fabricated_run("lazy", 3, attempt=2, metrics={"prompt_tps": 3.0}))
    runs.append(fabricated_run("eager", 3, metrics={"prompt_tps": 6.0}))
    assert paired(frame_of(runs)).treatment.tolist() == [1, 2, 3]


def test_an_arm_added_later_is_paired_by_block_but_not_interleaved():
    runs = prompt_runs({"eager": [4.0, 5.0, 6.0]})
    runs += prompt_runs({"lazy": [1.0, 2.0, 3.0]}, pass_=2)
    found = paired(frame_of(runs))
    assert found.blocks == (1, 2, 3)
    assert not found.interleaved


def test_pairs_of_the_same_pass_are_preferred_where_there_are_three():
    runs = prompt_runs({"eager": [4.0] * 5, "lazy": [None, None, 1.0, 2.0, 3.0]})
    runs += prompt_runs({"lazy": [10.0, 20.0]}, pass_=2)
    found = paired(frame_of(runs))
    assert found.blocks == (3, 4, 5)
    assert found.interleaved
    fewer = [run for run in runs if run.block != 5]
    mixed = paired(frame_of(fewer))
    assert mixed.blocks == (1, 2, 3, 4)
    assert mixed.treatment.tolist() == [10, 20, 1, 2]
    assert not mixed.interleaved


def test_a_block_measured_again_gives_one_pair_that_of_the_latest_pass():
    runs = prompt_runs({"lazy": [1.0, 2.0, 3.0], "eager": [4.0, 5.0, 6.0]})
    runs += prompt_runs({"lazy": [None, 20.0], "eager": [None, 50.0]}, pass_=2)
    found = paired(frame_of(runs))
    assert found.blocks == (1, 2, 3)
    assert np.column_stack([found.treatment, found.control]).tolist() == [[1, 4], [20, 50], [3, 6]]


def test_runs_on_two_machines_are_never_a_pair():
    runs = prompt_runs({"lazy": [1, 2, 3, 4], "eager": [2, 2, 2, 2]})
    moved = [
        run.model_copy(update={"host": {"kernel": "other"}})
        if (run.arm, run.block) == ("lazy", 4)
        else run
        for run in runs
    ]
    assert paired(frame_of(runs)).blocks == (1, 2, 3, 4)
    assert paired(frame_of(moved)).blocks == (1, 2, 3)
