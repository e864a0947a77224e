"""The order of runs is random, balanced, and does not move when blocks are added."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coldbench.measure.schedule import order

arms = st.lists(st.text("abcdefgh", min_size=1), min_size=1, max_size=9, unique=True)


@given(arms, st.integers(1, 60), st.text(max_size=5))
def test_every_arm_stands_once_in_a_block(names: list[str], block: int, seed: str) -> None:
    assert sorted(order(names, block=block, seed=seed)) == sorted(names)


@given(arms, st.integers(1, 60))
def test_the_order_does_not_depend_on_how_the_file_lists_the_arms(
    names: list[str], block: int
) -> None:
    assert order(names, block=block, seed="s") == order(names[::-1], block=block, seed="s")


@given(arms, st.text(max_size=5))
def test_over_a_cycle_every_arm_stands_equally_often_at_every_position(
    names: list[str], seed: str
) -> None:
    cycle = len(names) * (1 if len(names) % 2 == 0 else 2)
    blocks = [order(names, block=block, seed=seed) for block in range(1, cycle + 1)]
    for position in range(len(names)):
        counts = Counter(block[position] for block in blocks)
        assert set(counts.values()) == {cycle // len(names)}


@given(arms, st.text(max_size=5))
def test_over_a_cycle_every_arm_follows_every_other_equally_often(
    names: list[str], seed: str
) -> None:
    cycle = len(names) * (1 if len(names) % 2 == 0 else 2)
    follows = Counter(
        pair
        for block in range(1, cycle + 1)
        for pair in pairwise(order(names, block=block, seed=seed))
    )
    assert len(follows) == len(names) * (len(names) - 1)
    assert len(set(follows.values())) <= 1


def test_seeds_and_cycles_differ() -> None:
    names = list("abcdef")
    orders = {
        tuple(order(names, block=block, seed=seed)) for seed in "xyz" for block in (1, 2, 7, 8)
    }
    assert len(orders) > 6


def test_no_arms_have_no_order() -> None:
    assert order([], block=1, seed="") == []
