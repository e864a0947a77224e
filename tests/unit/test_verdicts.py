import numpy as np
import pytest

from coldbench.analysis.stats import decide, half_width, holm, log_ratios, paired_t_p
from coldbench.analysis.summary import tidy
from coldbench.analysis.verdicts import unresolved, verdicts
from coldbench.common.errors import ColdbenchError
from coldbench.study.specs import Claim
from tests.unit.fabricated_runs import cells_of, fabricated_run


def frame_of(runs):
    return tidy(runs, cells_of(runs))


def measured(rates, metric="prompt_tps", **more):
    """Runs by arm: {arm: values by block}."""
    return [
        fabricated_run(arm, block, metrics={metric: float(value)}, **more)
        for arm, values in rates.items()
        for block, value in enumerate(values, start=1)
    ]


def claim(treatment="lazy", control="eager", metric="prompt_tps", **more):
    settings = {"name": f"{treatment}/{control}", "model": "gemma", "workload": "pp512"}
    settings |= {"state": "cold", "margin": 0.03, "better": None}
    return Claim(treatment=treatment, control=control, metric=metric, **(settings | more))


def jitter(level, n, seed, scatter=0.005):
    return level * np.exp(np.random.default_rng(seed).normal(0, scatter, n))


def test_a_claim_is_judged_by_the_rule_on_its_own_pairs():
    lazy, eager = jitter(240, 8, 1), jitter(650, 8, 2)
    frame = frame_of(measured({"lazy": lazy, "eager": eager}))
    (row,) = verdicts(frame, [claim()], [])
    assert row.verdict == decide(log_ratios(lazy, eager), better="higher", margin=0.03)
    assert row.verdict.status == "slower"
    assert row.aa_spread is None
    assert not row.control


def test_each_state_and_model_is_judged_on_its_own_runs():
    runs = measured({"lazy": [100.0] * 6, "eager": [200.0] * 6}, state="cold")
    runs += measured({"lazy": [300.0] * 6, "eager": [200.0] * 6}, state="warm")
    runs += measured({"lazy": [200.0] * 6, "eager": [200.0] * 6}, model="qwen")
    claims = [claim(), claim(state="warm"), claim(model="qwen")]
    rows = verdicts(frame_of(runs), claims, [])
    assert [row.verdict.status for row in rows] == ["slower", "faster", "equivalent"]
    assert [row.claim for row in rows] == claims


def test_the_metrics_own_direction_decides_what_is_better():
    runs = [
        fabricated_run(arm, block, peak_rss=rss)
        for arm, rss in (("lazy", 173 * 2**20), ("eager", 649 * 2**20))
        for block in range(1, 7)
    ]
    (row,) = verdicts(frame_of(runs), [claim(metric="peak_rss_bytes")], [])
    assert row.verdict.status == "faster"


def test_a_metric_of_the_users_own_needs_a_direction():
    frame = frame_of(measured({"lazy": [1.0] * 6, "eager": [2.0] * 6}, metric="hits"))
    (row,) = verdicts(frame, [claim(metric="hits", better="lower")], [])
    assert row.verdict.status == "faster"
    with pytest.raises(ColdbenchError, match=r"comparisons\.lazy/eager.*`better: higher`"):
        verdicts(frame, [claim(metric="hits")], [])


def test_holms_correction_runs_over_all_claims_with_a_test():
    rates = {"eager": jitter(100, 8, 1, 0.01)}
    effects = [0.013, 0.014, 0.02, 0.05]
    rates |= {f"a{i}": jitter(100 * (1 + e), 8, 2 + i, 0.01) for i, e in enumerate(effects)}
    rates["once"] = [50.0]
    claims = [claim(arm) for arm in rates if arm != "eager"]
    rows = verdicts(frame_of(measured(rates)), claims, [])
    plain = [paired_t_p(log_ratios(rates[f"a{i}"], rates["eager"])) for i in range(4)]
    assert [row.verdict.adjusted_p for row in rows[:4]] == pytest.approx(holm(plain))
    assert rows[4].verdict.adjusted_p is None
    alone = verdicts(frame_of(measured(rates)), claims[:1], [])
    assert alone[0].verdict.adjusted_p == pytest.approx(plain[0])


def test_a_claim_that_holds_alone_may_fall_among_many():
    rates = {"eager": [100.0] * 6, "better": [100.5, 103.0, 104.0, 102.0, 105.0, 101.0]}
    rates |= {f"same{i}": jitter(100, 6, i, 0.02) for i in range(20)}
    frame = frame_of(measured(rates))
    (alone,) = verdicts(frame, [claim("better")], [])
    among = verdicts(frame, [claim(arm) for arm in rates if arm != "eager"], [])[0]
    assert alone.verdict.status == "faster"
    assert among.verdict.status == "inconclusive"
    assert "Holm" in among.verdict.reason


@pytest.mark.parametrize(
    ("lazy", "eager", "reason"),
    [
        ([0, 0, 0], [0, 0, 0], "0 in both arms"),
        ([0, 0, 0], [5, 5, 5], "no ratio with 0: lazy in 3 of 3 blocks"),
        ([5, 0, 5], [5, 5, 0], "no ratio with 0: lazy in 1 of 3 blocks, eager in 1 of 3 blocks"),
    ],
)
def test_zeros_are_not_comparable_and_never_a_ratio(lazy, eager, reason):
    runs = [
        fabricated_run(arm, block, state="warm", read=read)
        for arm, values in (("lazy", lazy), ("eager", eager))
        for block, read in enumerate(values, start=1)
    ]
    (row,) = verdicts(frame_of(runs), [claim(metric="read_bytes", state="warm")], [])
    assert (row.verdict.status, row.verdict.ratio) == ("not comparable", None)
    assert row.verdict.reason == reason


def test_an_arm_without_a_valid_run_is_not_comparable():
    runs = measured({"eager": [5.0] * 3})
    runs += [fabricated_run("lazy", block, status="failed") for block in (1, 2, 3)]
    nothing = "no block has this figure of both arms"
    for frame, reason in (
        (frame_of(runs), "incomplete: lazy 0 of 3 ok (failed)"),
        (frame_of(runs[:3]), nothing),
        (tidy([], {}), nothing),
    ):
        (row,) = verdicts(frame, [claim()], [("lazy", "twin")])
        assert row.verdict.status == "not comparable"
        assert row.verdict.reason == reason


def spoilt(status, blocks=(2, 4, 5), reason="why", **more):
    """Five blocks of a lazy arm that is slower, some of whose runs are not ok, and an eager one."""
    runs = measured({"lazy": jitter(50, 5, 1), "eager": jitter(100, 5, 2)})
    runs = [run for run in runs if run.arm == "eager" or run.block not in blocks]
    return runs + [fabricated_run("lazy", b, status=status, reason=reason, **more) for b in blocks]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("not delivered", "incomplete: lazy 2 of 5 ok (not delivered)"),
        ("disturbed", "incomplete: lazy 2 of 5 ok (disturbed)"),
        ("over budget", "exceeded the budget: lazy 2 of 5 ok (over budget)"),
    ],
)
def test_an_incomplete_cell_is_never_ranked(status, said):
    (row,) = verdicts(frame_of(spoilt(status)), [claim()], [])
    assert (row.verdict.status, row.verdict.ratio) == ("not comparable", None)
    assert row.verdict.reason == said
    (row,) = verdicts(frame_of(spoilt(status)), [claim("eager", "lazy")], [])
    assert row.verdict.status == "not comparable"


def test_a_cell_that_lacks_a_block_of_its_lane_is_incomplete():
    (row,) = verdicts(frame_of(measured({"lazy": [5.0] * 6, "eager": [4.0] * 7})), [claim()], [])
    assert row.verdict.reason == "incomplete: lazy 6 of 7 ok (not measured)"


def test_a_block_that_was_repeated_counts_once_and_by_its_latest_pass():
    again = measured({"lazy": jitter(50, 5, 3), "eager": jitter(100, 5, 4)}, pass_=2)
    again = [run for run in again if run.block in (2, 4, 5)]
    frame = frame_of([*spoilt("disturbed"), *again])
    (row,) = verdicts(frame, [claim()], [])
    assert (row.verdict.status, row.verdict.ratio.n) == ("slower", 5)
    worse = [run.model_copy(update={"status": "failed"}) for run in again if run.arm == "lazy"]
    frame = frame_of([*measured({"lazy": [5.0] * 5, "eager": [4.0] * 5}), *worse])
    (row,) = verdicts(frame, [claim()], [])
    assert row.verdict.reason == "incomplete: lazy 2 of 5 ok (failed)"


@pytest.mark.parametrize("arm", ["lazy", "eager"])
def test_no_winner_is_called_from_runs_on_a_busy_machine(arm):
    runs = measured({"lazy": jitter(50, 6, 1), "eager": jitter(100, 6, 2)})
    (quiet,) = verdicts(frame_of(runs), [claim()], [])
    assert quiet.verdict.status == "slower"
    busy = [
        run.model_copy(update={"notes": ["disturbed: other work took 40% of the CPUs"]})
        if (run.arm, run.block) == (arm, 3)
        else run
        for run in runs
    ]
    (row,) = verdicts(frame_of(busy), [claim()], [])
    assert row.verdict.status == "inconclusive"
    assert row.verdict.reason == "measured on a busy machine"
    assert row.verdict.ratio == quiet.verdict.ratio
    same = [*busy, *measured({"twin": jitter(100, 6, 9)})]
    control = verdicts(frame_of(same), [], [("eager", "twin")])[0]
    assert not control.alarm
    # Measured again when the machine was quiet, the block counts by that.
    again = [run.model_copy(update={"pass_": 2, "notes": []}) for run in busy if run.block == 3]
    (mended,) = verdicts(frame_of([*busy, *again]), [claim()], [])
    assert mended.verdict.status == "slower"


def test_blocks_are_wanted_for_width_alone_and_only_where_they_can_help():
    rates = {"eager": jitter(100, 4, 1, 0.02), "lazy": jitter(50, 4, 2, 0.02)}
    runs = measured(rates) + measured({"lazy": [7.0] * 4, "eager": [5.0] * 4}, state="warm")
    runs += [fabricated_run("bad", block, status="failed") for block in range(1, 5)]
    frame = frame_of(runs)
    claims = [claim(), claim(state="warm"), claim("bad")]
    ratio = verdicts(frame, [claim()], [])[0].verdict.ratio
    width = half_width(ratio)
    assert ratio.high < 0.6, "the difference is beyond doubt"
    assert unresolved(frame, claims, width * 0.99) == [claims[0]]
    assert unresolved(frame, claims, width * 1.01) == []
    # Of a single block there is no interval yet.
    single = frame_of(measured({"lazy": [7.0], "eager": [5.0]}))
    assert unresolved(single, [claim()], 0.5) == [claim()]


def test_the_aa_spread_is_the_pairs_own_effect_upwards_and_the_largest_of_several():
    rates = {
        "eager": [100.0] * 8,
        "lazy": [105.0] * 8,
        "eager2": [98.0] * 8,
        "eager3": [101.0] * 8,
    }
    frame = frame_of(measured(rates))
    spreads = [
        verdicts(frame, [claim()], pairs)[0].aa_spread
        for pairs in ([("eager", "eager3")], [("eager", "eager2"), ("eager", "eager3")])
    ]
    assert spreads == pytest.approx([0.01, 100 / 98 - 1])


def test_an_effect_within_the_aa_spread_is_not_claimed():
    lazy = jitter(105, 8, 1, 0.002)
    rates = {"eager": [100.0] * 8, "lazy": lazy, "twin": jitter(108, 8, 3, 0.002)}
    frame = frame_of(measured(rates))
    assert verdicts(frame, [claim()], [])[0].verdict.status == "faster"
    row = verdicts(frame, [claim()], [("eager", "twin")])[0]
    assert row.verdict.status == "inconclusive"
    assert "A/A spread" in row.verdict.reason


def test_noise_of_the_aa_pair_does_not_swallow_a_large_effect_of_three_blocks():
    # The ends of this A/A interval reach 12 %; its effect is under 1 %.
    rates = {"eager": [100.0, 103.0, 98.0], "twin": [103.0, 99.0, 101.0]}
    rates["lazy"] = [108.0, 111.3, 105.9]
    row = verdicts(frame_of(measured(rates)), [claim()], [("eager", "twin")])[0]
    assert (row.verdict.status, row.verdict.exploratory) == ("faster", True)


def test_an_aa_pair_counts_only_for_its_own_state_and_metric():
    runs = measured({"eager": [100.0] * 6, "lazy": [105.0] * 6}, state="warm")
    runs += measured({"eager": [100.0] * 6, "twin": [150.0] * 6}, state="cold")
    rows = verdicts(frame_of(runs), [claim(state="warm")], [("eager", "twin")])
    assert rows[0].aa_spread is None
    assert rows[0].verdict.status == "faster"


def test_aa_pairs_are_reported_as_controls_for_claimed_metrics_and_rates():
    rates = {"eager": jitter(100, 6, 1), "twin": jitter(100, 6, 2), "lazy": jitter(50, 6, 3)}
    frame = frame_of(measured(rates))
    rows = verdicts(frame, [claim(metric="major_faults")], [("eager", "twin")])
    controls = [row for row in rows if row.control]
    assert [row.claim.metric for row in controls] == ["prompt_tps", "major_faults"]
    assert all((row.claim.treatment, row.claim.control) == ("twin", "eager") for row in controls)
    assert not any(row.alarm for row in controls)


def test_an_aa_pair_that_differs_is_an_alarm():
    rates = {"eager": jitter(100, 6, 1), "twin": jitter(110, 6, 2)}
    (row,) = verdicts(frame_of(measured(rates)), [], [("eager", "twin")])
    assert row.alarm


def test_identical_arms_measured_in_turn_on_a_machine_that_slows_down_do_not_differ():
    # Each call is 5 % slower than the one before; the two arms take turns in going first.
    rates = {"eager": [], "twin": []}
    speed = 100.0
    for block in range(6):
        for arm in ("eager", "twin") if block % 2 else ("twin", "eager"):
            rates[arm].append(speed)
            speed *= 0.95
    (row,) = verdicts(frame_of(measured(rates)), [], [("eager", "twin")])
    assert not row.alarm
    assert row.verdict.ratio.ratio == pytest.approx(1)


def test_an_arm_measured_in_a_later_pass_makes_an_exploratory_claim():
    runs = measured({"eager": jitter(100, 8, 1)})
    runs += measured({"lazy": jitter(200, 8, 2)}, pass_=2)
    (row,) = verdicts(frame_of(runs), [claim()], [])
    assert (row.verdict.status, row.verdict.exploratory) == ("faster", True)
    assert row.verdict.reason == "not interleaved"
