"""What `coldbench trace` prints and plots."""

import textwrap
from pathlib import Path

import numpy as np
from tabulate import tabulate

from coldbench.analysis.access import AccessPattern
from coldbench.common.errors import ColdbenchError
from coldbench.common.files import replacing
from coldbench.measure.pagecache import PAGE_BYTES

PLOTS = (".png", ".svg")
_WIDTH = 100
_MIB = 2**20


def report(found: AccessPattern) -> str:
    """Return the whole report as text."""
    table = found.table
    table_pages = _pages(table.offset, table.row_bytes * table.rows)
    same = "n/a (a single gather)" if found.same_page is None else f"{found.same_page:.4%}"
    facts = [
        ["table", f"{table.name} of {table.file}"],
        ["rows", f"{table.rows:,} of {table.row_bytes:,} bytes from byte {table.offset:,} on"],
        ["gathers", f"{found.gathers:,}, {found.per_token:,} a token ({found.kind})"],
        ["unique rows", f"{found.rows_unique:,}, {found.rows_unique / table.rows:.2%} of all"],
        [
            "unique pages",
            f"{_size(found.pages_unique)}, {found.pages_unique / table_pages:.2%} of the table's",
        ],
        ["pages a gather", f"{found.touches / found.gathers:.3f}"],
        ["consecutive gathers on one page", same],
        ["gathers that touch a new page", f"{found.new_page:.2%}"],
    ]
    parts = [
        tabulate(facts, tablefmt="plain", disable_numparse=True),
        _demands(found),
        _windows(found),
        _heads(found),
    ]
    return "\n\n".join(parts) + "\n"


def check_plot(path: Path) -> None:
    """Raise ColdbenchError, before the work, where a plot's name has no known ending."""
    if path.suffix.lower() not in PLOTS:
        raise ColdbenchError(f"{path}: a plot is {' or '.join(PLOTS)}; give it that ending")


def plot(found: AccessPattern, path: Path) -> None:
    """Draw the reuse-distance curve, the working set and the heads' rows; PNG or SVG by ending.

    The same report gives the same bytes with the same matplotlib. Raises ColdbenchError where the
    file cannot be written.
    """
    check_plot(path)
    # It takes longer to load than all else that the commands need.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    with rc_context({"svg.hashsalt": "coldbench"}):
        figure = Figure(figsize=(15, 4.5), layout="constrained")
        curve, set_, heads = figure.subplots(1, 3)
        mib = found.curve.pages * (PAGE_BYTES / _MIB)
        curve.semilogx(mib, found.curve.lru * 100, label="LRU, empty at the beginning")
        curve.semilogx(mib, found.curve.hottest * 100, "--", label="the hottest pages, primed")
        curve.axhline(
            100 * (1 - found.new_page),
            color="grey",
            linewidth=0.8,
            label="the most that LRU can serve",
        )
        curve.set(title="Reuse", xlabel="cache (MiB)", ylabel="gathers served (%)", ylim=(0, 102))
        curve.legend()
        gathers = [0, *(window.gathers for window in found.windows)]
        so_far = [0, *(window.pages_so_far for window in found.windows)]
        set_.plot(gathers, np.array(so_far) * (PAGE_BYTES / _MIB), label="since the beginning")
        inside = [window.pages * (PAGE_BYTES / _MIB) for window in found.windows]
        set_.stairs(inside, gathers, baseline=None, label="within a window")
        set_.set(
            title="Working set", xlabel="gathers", ylabel="distinct pages (MiB)", ylim=(0, None)
        )
        set_.legend()
        heads.bar(range(len(found.heads)), [head.rows_unique for head in found.heads])
        heads.set(title="Rows by head", xlabel="head", ylabel="unique rows")
        heads.set_xticks(range(len(found.heads)))
        figure.suptitle(f"{found.table.name} of {found.table.file.name}: {found.gathers:,} gathers")
        with replacing(path) as temporary:
            figure.savefig(
                temporary, format=kind, metadata={"Date": None} if kind == "svg" else None
            )


def _demands(found: AccessPattern) -> str:
    rows = [
        [
            f"{demand.percent}%",
            f"n/a (at most {_floor_percent(1 - found.new_page)})"
            if demand.lru is None
            else _size(demand.lru),
            _size(demand.hottest),
        ]
        for demand in found.demands
    ]
    headers = [
        "of gathers served",
        "by LRU, empty at the beginning",
        "by the hottest pages, primed",
    ]
    note = (
        "A gather is served when all pages of its row are in the cache. To LRU the first touch of "
        "a page is a miss at any size, so it serves no more than the gathers without a new page. "
        "The LRU sizes were checked with libcachesim's simulator."
    )
    table = tabulate(
        rows, headers, tablefmt="simple", colalign=("right",) * 3, disable_numparse=True
    )
    return f"{table}\n\n{textwrap.fill(note, _WIDTH)}"


def _windows(found: AccessPattern) -> str:
    rows = [
        [f"{window.gathers:,}", _size(window.pages_so_far), _size(window.pages)]
        for window in found.windows
    ]
    headers = ["after gathers", "working set so far", "within the window"]
    return tabulate(
        rows, headers, tablefmt="simple", colalign=("right",) * 3, disable_numparse=True
    )


def _heads(found: AccessPattern) -> str:
    rows = [
        [
            str(number),
            f"{head.gathers:,}",
            f"{head.rows_unique:,}",
            f"{head.pages_unique:,}",
            f"{head.first_row:,}",
            f"{head.last_row:,}",
        ]
        for number, head in enumerate(found.heads)
    ]
    headers = ["head", "gathers", "unique rows", "unique pages", "lowest row", "highest row"]
    return tabulate(
        rows, headers, tablefmt="simple", colalign=("right",) * 6, disable_numparse=True
    )


def _size(pages: int) -> str:
    return f"{pages * PAGE_BYTES / _MIB:,.2f} MiB ({pages:,} pages)"


def _pages(offset: int, size: int) -> int:
    return (offset + size - 1) // PAGE_BYTES - offset // PAGE_BYTES + 1


def _floor_percent(share: float) -> str:
    # Not rounded up: what is out of reach must not read as reached.
    return f"{int(share * 10_000) / 100:.2f}%"
