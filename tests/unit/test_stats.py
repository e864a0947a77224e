import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test, t, ttest_1samp

from coldbench.analysis.stats import (
    Ratio,
    blocks_for,
    blocks_needed,
    decide,
    half_width,
    holm,
    log_ratios,
    paired_ratio,
    paired_t_p,
    ratio_of,
    sign_flip_p,
    tost_p,
)

effects = st.floats(-2, 2, allow_nan=False)
samples = st.lists(effects, min_size=3, max_size=9)
margins = st.floats(0.005, 0.3)


def shown(verdict):
    return verdict.status, verdict.exploratory, verdict.blocks


# --- known answers ------------------------------------------------------------------------------


def test_ratio_interval_and_p_agree_with_scipys_t_test_of_the_logs():
    rng = np.random.default_rng(7)
    for n in (2, 3, 5, 8, 30):
        control = rng.lognormal(3, 0.2, n)
        treatment = control * rng.lognormal(0.05, 0.03, n)
        logs = np.log(treatment / control)
        expected = ttest_1samp(logs, 0)
        interval = expected.confidence_interval(0.9)
        ratio = paired_ratio(treatment, control, confidence=0.9)
        assert ratio.n == n
        assert ratio.ratio == pytest.approx(np.exp(logs.mean()), rel=1e-12)
        assert ratio.low == pytest.approx(np.exp(interval.low), rel=1e-9)
        assert ratio.high == pytest.approx(np.exp(interval.high), rel=1e-9)
        assert paired_t_p(logs) == pytest.approx(expected.pvalue, rel=1e-9)


def test_tost_is_the_larger_of_scipys_one_sided_tests_at_the_margins_bounds():
    rng = np.random.default_rng(8)
    for n in (3, 6, 12):
        logs = rng.normal(0.004, 0.01, n)
        bound = np.log(1.02)
        below = ttest_1samp(logs, -bound, alternative="greater").pvalue
        above = ttest_1samp(logs, bound, alternative="less").pvalue
        assert tost_p(logs, 0.02) == pytest.approx(max(below, above), rel=1e-9)


def test_sign_flip_p_is_the_share_of_all_sign_patterns_that_are_as_extreme():
    assert sign_flip_p([0.1] * 6) == 2 / 64
    assert sign_flip_p([0.1] * 5) == 2 / 32
    assert sign_flip_p([0.3, 0.2, -0.1]) == 0.5
    logs = np.random.default_rng(9).normal(0.3, 1, 7)
    sums = [abs(np.dot(signs, logs)) for signs in itertools.product([1, -1], repeat=7)]
    assert sign_flip_p(logs) == np.mean(np.array(sums) >= abs(logs.sum()) - 1e-12)
    scipys = permutation_test((logs,), np.mean, permutation_type="samples", n_resamples=2**8)
    assert sign_flip_p(logs) == pytest.approx(scipys.pvalue)


def test_sign_flip_p_beyond_enumeration_is_near_the_t_tests_and_repeatable():
    logs = np.random.default_rng(10).normal(0.2, 0.5, 24)
    p = sign_flip_p(logs)
    assert p == sign_flip_p(logs[::-1])
    assert p == pytest.approx(ttest_1samp(logs, 0).pvalue, rel=0.3)


def test_holm_multiplies_by_the_hypotheses_left_and_never_decreases():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_blocks_needed_is_the_first_number_whose_half_width_is_within_the_margin():
    logs = np.array([-0.05, 0.05, -0.05, 0.05])
    deviation = logs.std(ddof=1)
    needed = blocks_needed(logs, 0.03)

    def half(n):
        return t.ppf(0.975, n - 1) * deviation / np.sqrt(n)

    assert half(needed) <= np.log(1.03) < half(needed - 1)


def test_an_effect_near_the_margin_needs_more_blocks_than_none():
    scatter = np.array([-0.02, 0.02, -0.02, 0.02])
    halfway = scatter + np.log(1.03) / 2
    assert blocks_needed(halfway, 0.03) > blocks_needed(scatter, 0.03)


def test_blocks_needed_is_none_where_blocks_cannot_help():
    assert blocks_needed([-3.0, 3.0, -3.0, 3.0], 0.001) is None
    # 4 %: under the A/A spread of 5 %, so never claimed, and outside the margin of 3 %.
    assert blocks_needed([0.04, 0.041, 0.039], 0.03, floor=0.05) is None


@pytest.mark.parametrize(
    ("treatment", "control"),
    [([1.0, 0.0], [1.0, 1.0]), ([1.0], [-1.0]), ([1.0, 2.0], [1.0]), ([float("nan")], [1.0])],
)
def test_values_without_a_log_ratio_are_refused(treatment, control):
    with pytest.raises(ValueError, match=r"paired values|log ratio"):
        log_ratios(treatment, control)


def test_a_single_block_has_a_ratio_but_no_interval():
    ratio = paired_ratio([3.0], [2.0])
    assert ratio.ratio == pytest.approx(1.5)
    assert (ratio.low, ratio.high, ratio.n) == (None, None, 1)


def test_two_blocks_far_apart_have_a_finite_interval():
    ratio = paired_ratio([1e-150, 1e150], [1e150, 1e-150])
    assert np.isfinite([ratio.low, ratio.high]).all()


def test_blocks_that_agree_to_the_last_bit_are_certain_or_equal():
    same = decide(log_ratios([649.0] * 6, [649.0] * 6), better="lower", margin=0.03)
    assert (same.status, same.p) == ("equivalent", 1.0)
    apart = decide(log_ratios([173.0] * 6, [649.0] * 6), better="lower", margin=0.03)
    assert (apart.status, apart.p) == ("faster", 0.0)
    assert apart.ratio.low == apart.ratio.ratio == apart.ratio.high


# --- the rule -----------------------------------------------------------------------------------


def test_fewer_than_three_blocks_are_always_inconclusive():
    for n in (1, 2):
        verdict = decide([1.0] * n, better="higher", margin=0.03)
        assert verdict.status == "inconclusive"
        assert "too few blocks" in verdict.reason


def test_three_to_five_blocks_are_exploratory_unless_the_interval_clears_a_tenth():
    for n in (3, 4, 5):
        small = decide(np.linspace(0.049, 0.051, n), better="higher", margin=0.03)
        large = decide(np.linspace(0.99, 1.01, n), better="higher", margin=0.03)
        assert (small.status, small.exploratory) == ("faster", True)
        assert (large.status, large.exploratory) == ("faster", False)


def test_six_blocks_claim_without_reserve_but_need_the_sign_flip_test_too():
    clear = decide(np.linspace(0.04, 0.06, 6), better="higher", margin=0.03)
    assert (clear.status, clear.exploratory, clear.sign_flip_p) == ("faster", False, 2 / 64)
    # One block of six the other way: p = 4/64 by sign flips although the t interval excludes 1.
    mixed = decide([-0.002, 0.05, 0.05, 0.05, 0.05, 0.06], better="higher", margin=0.03)
    assert mixed.p < 0.05
    assert mixed.status == "inconclusive"
    assert "sign-flip" in mixed.reason


def test_an_effect_of_less_than_a_per_cent_is_never_a_difference():
    verdict = decide(np.linspace(0.0079, 0.0081, 8), better="higher", margin=0.005)
    assert verdict.status == "inconclusive"
    assert verdict.reason == "effect within 1%"


def test_an_effect_within_the_spread_of_the_aa_pair_is_never_a_difference():
    logs = np.linspace(0.049, 0.051, 8)
    assert decide(logs, better="higher", margin=0.03, aa_spread=0.04).status == "faster"
    verdict = decide(logs, better="higher", margin=0.03, aa_spread=0.06)
    assert verdict.status == "inconclusive"
    assert verdict.reason == "effect within the A/A spread of 6%"


def test_a_claim_needs_holms_p():
    logs = np.linspace(0.049, 0.051, 8)
    assert decide(logs, better="higher", margin=0.03, adjusted_p=0.05).status == "faster"
    verdict = decide(logs, better="higher", margin=0.03, adjusted_p=0.051)
    assert verdict.status == "inconclusive"
    assert "Holm" in verdict.reason


def test_equivalence_needs_six_blocks_inside_the_margin():
    logs = [0.001, -0.001, 0.002, -0.002, 0.0]
    five = decide(logs, better="higher", margin=0.03)
    assert (five.status, five.blocks) == ("inconclusive", 6)
    assert decide([*logs, 0.001], better="higher", margin=0.03).status == "equivalent"
    assert decide([*logs, 0.001], better="higher", margin=0.001).status == "inconclusive"


def test_equivalence_beside_a_worse_aa_pair_says_so():
    logs = [0.001, -0.001, 0.002, -0.002, 0.0, 0.001]
    verdict = decide(logs, better="higher", margin=0.03, aa_spread=0.04)
    assert verdict.reason == "within 3%; but the A/A pair differs by 4%"


def test_a_difference_inside_the_margin_is_claimed_and_named_as_such():
    verdict = decide(np.linspace(0.019, 0.021, 8), better="higher", margin=0.03)
    assert (verdict.status, verdict.reason) == ("faster", "inside the margin of 3%")


def test_two_runs_of_each_arm_do_not_make_a_five_per_cent_loss():
    # Warm prompt rates of two builds: apart with two repetitions, alike with five.
    base = [1755.0, 1741.0, 1702.0, 1718.0, 1744.0]
    patched = [1662.0, 1655.0, 1733.0, 1716.0, 1694.0]
    two = decide(log_ratios(patched[:2], base[:2]), better="higher", margin=0.03)
    assert two.status == "inconclusive"
    five = decide(log_ratios(patched, base), better="higher", margin=0.03)
    assert five.status == "inconclusive"
    assert five.blocks > 5


def test_runs_that_were_not_interleaved_never_make_more_than_an_exploratory_claim():
    verdict = decide(np.linspace(0.99, 1.01, 8), better="higher", margin=0.03, interleaved=False)
    assert (verdict.status, verdict.exploratory) == ("faster", True)
    assert verdict.reason == "not interleaved"


def test_where_lower_is_better_less_is_faster():
    logs = np.linspace(-1.01, -0.99, 6)
    assert decide(logs, better="lower", margin=0.03).status == "faster"
    assert decide(logs, better="higher", margin=0.03).status == "slower"


# --- properties ---------------------------------------------------------------------------------


@given(samples, margins, st.sampled_from(["higher", "lower"]), st.floats(0, 0.2))
def test_swapping_the_arms_inverts_the_ratio_and_the_verdict(logs, margin, better, spread):
    forth = decide(logs, better=better, margin=margin, aa_spread=spread)
    back = decide(-np.array(logs), better=better, margin=margin, aa_spread=spread)
    mirrored = {"faster": "slower", "slower": "faster"}
    assert shown(back) == (mirrored.get(forth.status, forth.status), *shown(forth)[1:])
    assert (back.p, back.sign_flip_p, back.tost_p) == (forth.p, forth.sign_flip_p, forth.tost_p)
    assert back.ratio.ratio == pytest.approx(1 / forth.ratio.ratio, rel=1e-9)
    assert back.ratio.low == pytest.approx(1 / forth.ratio.high, rel=1e-9)


@given(samples, margins, st.randoms())
def test_the_order_of_the_blocks_does_not_matter(logs, margin, random):
    shuffled = list(logs)
    random.shuffle(shuffled)
    here = decide(logs, better="higher", margin=margin)
    assert decide(shuffled, better="higher", margin=margin) == here


@given(
    st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=3, max_size=8),
    st.integers(-40, 40),
)
def test_the_unit_of_the_values_does_not_matter(values, exponent):
    treatment, control = np.array(values).T
    here, there = (log_ratios(treatment * s, control * s) for s in (1.0, 2.0**exponent))
    assert there == pytest.approx(here, abs=1e-9)
    assert ratio_of(there).high == pytest.approx(ratio_of(here).high, rel=1e-6)


@given(samples, effects)
def test_a_constant_factor_on_one_arm_moves_ratio_and_interval_by_it(logs, shift):
    here, there = ratio_of(logs), ratio_of(np.array(logs) + shift)
    for name in ("ratio", "low", "high"):
        assert getattr(there, name) == pytest.approx(getattr(here, name) * np.exp(shift), rel=1e-6)


@given(samples, margins, margins)
def test_a_wider_margin_never_makes_equivalence_harder(logs, one, other):
    narrow, wide = sorted([one, other])
    assert tost_p(logs, wide) <= tost_p(logs, narrow)
    inside, outside = (decide(logs, better="higher", margin=m) for m in (narrow, wide))
    if inside.status == "equivalent":
        assert outside.status == "equivalent"
    few, many = blocks_needed(logs, wide), blocks_needed(logs, narrow)
    assert many is None or (few is not None and few <= many)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_only_raises_p_values_and_keeps_their_order(p_values):
    adjusted = holm(p_values)
    assert all(after >= before for after, before in zip(adjusted, p_values, strict=True))
    assert [adjusted[i] for i in np.argsort(p_values, kind="stable")] == sorted(adjusted)


# --- simulation ---------------------------------------------------------------------------------

NOISE = 0.02
TRIALS = 1500


def claimed(n, effect, seed):
    """Return the share of simulated comparisons that claim a difference, and the right one."""
    rng = np.random.default_rng(seed)
    pairs = rng.normal(0, NOISE, (TRIALS, 2, n, 2))
    logs = pairs[:, 0, :, 0] - pairs[:, 0, :, 1] + np.log1p(effect)
    spreads = np.expm1(np.abs((pairs[:, 1, :, 0] - pairs[:, 1, :, 1]).mean(axis=1)))
    found = [
        decide(sample, better="higher", margin=0.03, aa_spread=spread).status
        for sample, spread in zip(logs, spreads, strict=True)
    ]
    return np.isin(found, ["faster", "slower"]).mean(), np.mean(np.array(found) == "faster")


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8])
def test_identical_arms_raise_a_false_alarm_in_at_most_a_twentieth(n):
    alarms, _ = claimed(n, 0.0, seed=n)
    assert alarms <= 0.05


@pytest.mark.parametrize(("n", "power"), [(6, 0.78), (7, 0.95), (8, 0.99)])
def test_a_true_five_per_cent_is_found_as_often_as_the_method_promises(n, power):
    _, found = claimed(n, 0.05, seed=100 + n)
    assert found == pytest.approx(power, abs=0.03)


# --- width --------------------------------------------------------------------------------------


def test_half_the_width_of_an_interval_is_relative_and_the_same_when_the_arms_are_swapped():
    assert half_width(Ratio(1.0, 1 / 1.03, 1.03, 6)) == pytest.approx(0.03)
    assert half_width(Ratio(0.5, 0.5 / 1.03, 0.5 * 1.03, 6)) == pytest.approx(0.03)
    assert half_width(Ratio(2.0, None, None, 1)) is None


@given(samples)
def test_half_the_width_mirrors(sample):
    there, back = ratio_of(sample), ratio_of([-value for value in sample])
    assert half_width(there) == pytest.approx(half_width(back), rel=1e-9)


@given(margins, st.floats(0.001, 0.1))
def test_the_blocks_for_a_margin_are_the_fewest_whose_interval_is_within_it(margin, noise):
    blocks = blocks_for(margin, noise)
    deviation = np.sqrt(2) * np.log1p(noise)

    def width(n):
        return t.ppf(0.975, n - 1) * deviation / np.sqrt(n)

    if blocks is None:
        assert width(10_000) > np.log1p(margin)
    else:
        assert width(blocks) <= np.log1p(margin) * (1 + 1e-9)
        assert blocks == 6 or width(blocks - 1) > np.log1p(margin) * (1 - 1e-9)
