"""The order of runs: seeded, random, and balanced over blocks."""

import random


def order(arms: list[str], *, block: int, seed: str) -> list[str]:
    """Return the arms in the order of block `block` (from 1).

    The blocks walk through the rows of a Williams design with relabelled arms and shuffled rows:
    over a full cycle every arm stands once at every position and follows every other arm equally
    often, so neither drift nor what an arm leaves behind favours one. Appending blocks leaves
    earlier ones as they were.

    Source: E. J. Williams (1949), Experimental designs balanced for the estimation of residual
    effects of treatments, Aust. J. Sci. Res. 2.
    """
    if not arms:
        return []
    rows = _williams(len(arms))
    cycle, row = divmod(block - 1, len(rows))
    # Sorted first: the order depends on which arms there are, not on how the file lists them.
    labels = sorted(arms)
    generator = random.Random(f"{seed}/{cycle}")
    generator.shuffle(labels)
    generator.shuffle(rows)
    return [labels[index] for index in rows[row]]


def _williams(count: int) -> list[list[int]]:
    first = [0]
    for step in range(1, count):
        first.append((step + 1) // 2 if step % 2 else count - step // 2)
    rows = [[(index + shift) % count for index in first] for shift in range(count)]
    # An odd number of arms needs the mirrored square too to balance what follows what.
    return rows if count % 2 == 0 else rows + [row[::-1] for row in rows]
