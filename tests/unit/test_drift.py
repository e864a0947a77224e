"""Drift of known size is found at that size, and none is seen where there is none."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldbench.analysis.drift import drifts, position_slope, trend_slope
from coldbench.analysis.summary import tidy
from coldbench.measure.schedule import order

from .fabricated_runs import cells_of, fabricated_run

ARMS = ["a", "b", "c", "d"]
LEVELS = {"a": 0.0, "b": 0.7, "c": -2.0, "d": 0.1}


def lane(blocks, *, slot=0.0, block_step=0.0, noise=0.0, seed=1, arms=ARMS):
    """Return logs, arms, passes and positions of a study in the real order."""
    random = np.random.default_rng(seed)
    rows = [
        (LEVELS[arm] + slot * place + block_step * block, arm, block, place)
        for block in range(1, blocks + 1)
        for place, arm in enumerate(order(list(arms), block=block, seed=str(seed)), start=1)
    ]
    logs = np.array([row[0] for row in rows]) + random.normal(0, noise, len(rows))
    return logs, [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows]


@given(
    slot=st.floats(-0.2, 0.2),
    block_step=st.floats(-0.2, 0.2),
    blocks=st.integers(3, 9),
    seed=st.integers(0, 99),
    level=st.floats(-3, 3),
)
@settings(deadline=None)
def test_exact_slopes_come_back_whatever_the_arms_are(slot, block_step, blocks, seed, level):
    logs, arms, passes, positions = lane(blocks, slot=slot, block_step=block_step, seed=seed)
    logs = logs + level
    position = position_slope(logs, arms, passes, positions)
    trend = trend_slope(logs, arms, passes)
    assert position.change == pytest.approx(math.expm1(slot), abs=1e-9)
    assert trend.change == pytest.approx(math.expm1(block_step), abs=1e-9)
    for slope in (position, trend):
        assert slope.low <= slope.change <= slope.high
        assert 0 <= slope.p <= 1


@given(seed=st.integers(0, 50))
@settings(deadline=None, max_examples=20)
def test_the_order_in_which_runs_are_listed_plays_no_part(seed):
    logs, arms, passes, positions = lane(6, slot=0.01, noise=0.02, seed=seed)
    shuffled = np.random.default_rng(seed).permutation(len(arms))
    args = ([each[i] for i in shuffled] for each in (logs, arms, passes, positions))
    here, there = position_slope(logs, arms, passes, positions), position_slope(*args)
    assert there.p == pytest.approx(here.p)
    assert there.change == pytest.approx(here.change)


def test_a_machine_that_does_not_drift_is_called_so_and_one_that_does_is_found():
    quiet = [lane(8, noise=0.02, seed=seed) for seed in range(400)]
    false = np.mean([position_slope(*each).p <= 0.05 for each in quiet])
    false_trend = np.mean([trend_slope(*each[:3]).p <= 0.05 for each in quiet])
    # 5% of 400, give or take three standard deviations
    assert 0.017 < false < 0.083
    assert 0.017 < false_trend < 0.083
    hot = [lane(8, slot=-0.02, block_step=-0.08, noise=0.02, seed=seed) for seed in range(100)]
    assert np.mean([position_slope(*each).p <= 0.05 for each in hot]) > 0.95
    assert np.mean([trend_slope(*each[:3]).p <= 0.05 for each in hot]) > 0.95


def test_levels_of_whole_blocks_are_no_effect_of_the_position_nor_many_trends():
    random = np.random.default_rng(3)
    false = []
    for seed in range(300):
        logs, arms, passes, positions = lane(6, noise=0.005, seed=seed)
        logs = logs + random.normal(0, 0.1, 7)[np.array(passes)]
        assert position_slope(logs, arms, passes, positions).p > 1e-6
        false.append(trend_slope(logs, arms, passes).p <= 0.05)
    assert 0.01 < np.mean(false) < 0.09


def test_too_few_runs_give_no_answer():
    one = lane(1)
    assert position_slope(*one) is None
    assert trend_slope(*lane(2)[:3]) is None
    logs, arms, passes, positions = lane(5, arms=["a"])
    assert position_slope(logs, arms, passes, positions) is None


def runs(slot, noise=0.01, blocks=8, state="cold"):
    logs, arms, passes, positions = lane(blocks, slot=slot, block_step=4 * slot, noise=noise)
    return [
        fabricated_run(
            arm,
            block,
            state=state,
            metrics={"prompt_tps": math.exp(5 + log)},
            position=place,
            started=f"2026-11-30T10:{block:02d}:{place:02d}Z",
        )
        for log, arm, block, place in zip(logs, arms, passes, positions, strict=True)
    ]


def test_a_study_s_lanes_are_tested_on_their_rates():
    records = runs(-0.01)
    found = drifts(tidy(records, cells_of(records)))
    assert [(each.state, each.metric, each.effect) for each in found] == [
        ("cold", "prompt_tps", "position"),
        ("cold", "prompt_tps", "trend"),
    ]
    assert all(each.found for each in found)
    assert found[0].slope.change == pytest.approx(-0.01, abs=0.004)
    assert found[1].slope.change == pytest.approx(-0.04, abs=0.004)
    still = runs(0.0)
    assert not any(each.found for each in drifts(tidy(still, cells_of(still))))
    assert drifts(tidy([], {})) == []


def test_one_block_is_not_tested():
    records = runs(0.0, blocks=1)
    found = drifts(tidy(records, cells_of(records)))
    assert [each.slope for each in found] == [None, None]
