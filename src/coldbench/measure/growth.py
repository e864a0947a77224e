"""How a model comes into the page cache while an engine runs: sampled from outside."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_text
from coldbench.records import Residency

HEADER = "t_s,table_bytes,rest_bytes"
"""Of a curve: seconds since the start, resident bytes of the table (empty: none) and others."""


@contextmanager
def sampled(every_s: float | None, look: Callable[[], Residency], target: Path) -> Iterator[None]:
    """Write the residency that `look` finds every `every_s` seconds to `target`; None: do nothing.

    A look asks cachestat(2) once a file and once for the table, about half a millisecond a GiB.
    """
    if every_s is None:
        yield
        return
    lines = [HEADER]
    done = threading.Event()

    def run() -> None:
        begun = time.monotonic()
        for number in range(1_000_000):
            if done.wait(max(0.0, begun + number * every_s - time.monotonic())):
                return
            at = time.monotonic() - begun
            try:
                seen = look()
            except ColdbenchError:
                continue  # A gap: the run itself is judged by what is looked at after it.
            table = "" if seen.table_bytes is None else str(seen.table_bytes)
            lines.append(f"{at:.3f},{table},{seen.total_bytes - (seen.table_bytes or 0)}")

    sampler = threading.Thread(target=run, daemon=True)
    sampler.start()
    try:
        yield
    finally:
        done.set()
        sampler.join()
        write_text(target, "\n".join(lines) + "\n")
