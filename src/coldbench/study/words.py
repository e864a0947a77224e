"""Words for what is wrong in a study file, and where."""

import difflib

Place = tuple[str | int, ...]
"""Where a value stands in the file: keys and list indices from the top."""


def suggest(word: str, known: list[str]) -> str:
    """Return what to say after an unknown word: the nearest known one, else all of them."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""
