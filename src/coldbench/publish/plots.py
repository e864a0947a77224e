"""Plots that are the same bytes whenever they show the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coldbench.common.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """Yield a figure of `width` x `height` inches; then write it to `path`, PNG or SVG by ending.

    Raises ColdbenchError where the file cannot be written.
    """
    # It takes longer to load than all else that the commands need.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    with rc_context({"svg.hashsalt": "coldbench"}):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        with replacing(path) as temporary:
            drawn.savefig(
                temporary, format=kind, metadata={"Date": None} if kind == "svg" else None
            )
