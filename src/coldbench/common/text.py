"""Text for a terminal."""


def visible(text: str, *, breaks: bool = True) -> str:
    """Return `text` with what a terminal would obey, not show, written as Python escapes it.

    Line breaks stay unless `breaks` is False.
    """
    return "".join(
        c if c.isprintable() or (breaks and c == "\n") else c.encode("unicode_escape").decode()
        for c in text
    )
