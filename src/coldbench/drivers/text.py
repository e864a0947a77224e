"""Cutting generated text out of a chatty stream."""

import re

from coldbench.drivers.base import UnusableError

HANDFUL = 5


def cut_text(pattern: str, stdout: bytes) -> bytes:
    """Return the bytes of `pattern`'s first group in `stdout` (of the whole match without one).

    A dot matches line ends too. Raises UnusableError (void) where the pattern does not match.
    """
    # surrogateescape takes bytes that are no UTF-8 there and back unchanged
    match = re.search(pattern, stdout.decode("utf-8", "surrogateescape"), re.DOTALL)
    if match is None or (match.re.groups and match[1] is None):
        raise UnusableError("void", f"no text: the text pattern {pattern!r} does not match stdout")
    return match[1 if match.re.groups else 0].encode("utf-8", "surrogateescape")


def is_degenerate(text: bytes) -> bool:
    """Return whether a text of many tokens holds no more than a handful of characters and words."""
    decoded = text.decode("utf-8", "replace")
    return len(set(decoded)) <= HANDFUL and len(set(decoded.split())) <= HANDFUL
