"""The matrix and its comparisons as CSV."""

import pytest

from coldbench.publish.csv import comparisons_csv, matrix_csv
from tests.unit.fabricated_runs import fabricated_run

from .test_matrix import MIB, claim, laid_out, records, study_runs


def test_the_csv_has_one_row_an_arm_with_plain_numbers_in_base_units():
    lazy, eager = records(matrix_csv(laid_out(study_runs())))
    assert (lazy["model"], lazy["workload"], lazy["arm"]) == ("gemma", "pp512", "lazy")
    assert (lazy["identity"], lazy["md5"]) == ("ok", "0a1b2c3d4e5f")
    assert (lazy["cold_runs_ok"], lazy["cold_runs"]) == ("3", "3")
    names = [f"cold_prompt_tps_{figure}" for figure in ("median", "min", "max", "n")]
    assert [eager[name] for name in names] == ["1700", "1650", "1720", "3"]
    assert lazy["cold_peak_rss_bytes_median"] == str(173 * MIB)
    assert lazy["cold_table_residency_median"] == "0.01953125"
    assert lazy["warm_read_bytes_median"] == "0"


def test_tables_with_different_columns_share_one_csv_header():
    runs = [
        fabricated_run("lazy", 1, metrics={"prompt_tps": 5.0}),
        fabricated_run("lazy", 1, workload="own", metrics={"gathers": 7.0}, state="warm"),
    ]
    document = laid_out(runs, arms=("lazy",), workloads={"pp512": "pp512", "own": "own"})
    bench, own = records(matrix_csv(document))
    assert (bench["cold_prompt_tps_median"], bench["warm_gathers_median"]) == ("5", "")
    assert (own["cold_prompt_tps_median"], own["warm_gathers_median"]) == ("", "7")
    assert (own["cold_runs"], own["warm_runs"]) == ("0", "1")


def test_the_comparisons_csv_has_both_wordings_and_every_p_value():
    document = laid_out(study_runs(), claims=[claim(metric="read_bytes")], aa_pairs=[])
    (row,) = records(comparisons_csv(document))
    assert (row["kind"], row["status"], row["verdict"]) == ("claim", "faster", "lower")
    assert float(row["ratio"]) == pytest.approx(24 / 642, rel=1e-3)
    assert 0 < float(row["p"]) == float(row["adjusted_p"]) < 1e-3
    assert (row["sign_flip_p"], row["n"], row["margin"]) == ("", "3", "0.03")
