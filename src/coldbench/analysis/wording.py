"""Reasons and notes that differ in their figures alone, told as one."""

import re
from collections.abc import Sequence

_QUANTITY = re.compile(
    r"(?<![\w.,-])"
    r"(\d[\d,]*\.\d+|\d[\d,]*(?= ?(?:[KMGT]?i?B|k?bytes?|[µm]?s|t/s|pages?|faults)\b| ?%)"
    r"|(?<=\bpid )\d+)"
)
"""A number with a unit, a decimal fraction, a process id; no exit status and no signal."""


def pattern(text: str) -> str:
    """Return the text without its quantities: equal for texts that say the same."""
    return _QUANTITY.sub("\0", text)


def ranged(texts: Sequence[str]) -> str:
    """Return texts of one pattern as one, each quantity that differs as `smallest–largest`."""
    columns = zip(*(_QUANTITY.findall(text) for text in texts), strict=True)
    ranges = iter([_range(column) for column in columns])
    return _QUANTITY.sub(lambda _: next(ranges), texts[0])


def _range(numbers: Sequence[str]) -> str:
    ordered = sorted(numbers, key=lambda number: float(number.replace(",", "")))
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]}–{ordered[-1]}"
