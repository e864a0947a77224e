"""Verdicts and numbers as a reader sees them."""

import pytest

from coldbench.analysis.stats import Ratio, Verdict
from coldbench.analysis.verdicts import VerdictRow
from coldbench.publish.figures import interval, ratio, spread, unit_for, word
from coldbench.publish.markdown import markdown
from tests.unit.fabricated_runs import fabricated_run

from .test_matrix import MIB, claim, grid, laid_out


def judged(status, metric="prompt_tps", value=2.0, **more):
    verdict = Verdict(status, Ratio(value, value, value, 8), p=0.01, **more)
    return VerdictRow(claim(metric=metric), verdict)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (judged("faster"), "faster"),
        (judged("slower", "wall_s"), "slower"),
        (judged("slower", "read_bytes", 2.0), "higher"),
        (judged("faster", "peak_rss_bytes", 0.5), "lower"),
        (judged("faster", "major_faults", 0.5), "lower"),
        (judged("faster", "gathers"), "better"),
        (judged("slower", "gathers"), "worse"),
        (judged("equivalent", "read_bytes"), "equivalent"),
        (judged("inconclusive"), "inconclusive"),
        (VerdictRow(claim(), Verdict("not comparable")), "not comparable"),
        (VerdictRow(claim(), judged("slower").verdict, control=True), "ALARM"),
        (VerdictRow(claim(), judged("inconclusive").verdict, control=True), "no alarm"),
        (VerdictRow(claim(), Verdict("inconclusive"), control=True), "too few blocks"),
    ],
)
def test_a_verdict_is_said_in_the_words_of_its_metric(row, said):
    assert word(row) == said


def test_exploratory_verdicts_and_the_blocks_still_needed_stand_in_the_table():
    runs = [
        fabricated_run(arm, block, metrics={"prompt_tps": rate})
        for arm, rates in {
            "lazy": [105.0, 105.5, 104.8],
            "eager": [100.0, 100.2, 100.1],
            "noisy": [90.0, 108.0, 103.0],
        }.items()
        for block, rate in enumerate(rates, start=1)
    ]
    document = laid_out(runs, claims=[claim(), claim("noisy")], arms=("lazy", "eager", "noisy"))
    header, _, *rows = grid(markdown(document), "## Comparisons")
    lazy, noisy = (dict(zip(header, row, strict=True)) for row in rows)
    assert (lazy["verdict"], lazy["needs"]) == ("faster (exploratory)", "")
    assert (noisy["verdict"], noisy["notes"]) == ("inconclusive", "")
    assert int(noisy["needs"]) > 3


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "largest", "values", "text"),
    [
        ("prompt_tps", 1732.4, (1732.4, 1690.2, 1755.0), "1,732 (1,690–1,755)"),
        ("prompt_tps", 93.0, (93.04, 92.3, 93.5), "93.0 (92.3–93.5)"),
        ("prompt_tps", 12.9, (12.84, 4.18, 12.9), "12.8 (4.2–12.9)"),
        ("prompt_tps", 0.24, (0.2394, 0.2386, 0.24), "0.239 (0.239–0.240)"),
        ("wall_s", 2.5, (2.5, 2.5, 2.5), "2.50"),
        ("read_bytes", 649 * MIB, (649 * MIB, 649 * MIB, 649 * MIB), "649.0"),
        ("read_bytes", 28.4 * 2**30, (2.16 * 2**30, 2 * 2**30, 28.4 * 2**30), "2.16 (2.00–28.40)"),
        ("read_bytes", 649 * MIB, (4096, 0, 8192), "0.00391 (0–0.00781)"),
        ("read_bytes", 0, (0, 0, 0), "0"),
        ("major_faults", 9864, (9864, 2, 9866), "9,864 (2–9,866)"),
        ("major_faults", 3, (2.5, 2, 3), "2.5 (2.0–3.0)"),
        ("table_residency", 1.0, (0.002, 0.0015, 1.0), "0.2 (0.1–100.0)"),
    ],
)
def test_figures_have_the_digits_a_reader_can_use(metric, largest, values, text):
    assert spread(*values, unit_for(metric, largest)) == text


def test_large_columns_are_in_gib_and_small_ones_in_mib():
    assert unit_for("read_bytes", 28 * 2**30).name == "GiB"
    assert unit_for("read_bytes", 649 * MIB).name == "MiB"


def test_ratios_keep_three_digits_whatever_their_size():
    assert [ratio(value) for value in (0.00037, 0.0374, 0.985, 2.708, 48.31, 731.2)] == [
        "0.000370",
        "0.0374",
        "0.985",
        "2.708",
        "48.3",
        "731",
    ]
    assert ratio(None) == "n/a"
    assert interval(1e-30, 3e40, 1.0) == "1.0e-30–3.0e+40"
    assert interval(None, None, 1.0) == "n/a"
