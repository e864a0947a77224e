"""What `coldbench evict`, `residency` and `doctor` print."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from coldbench.measure.doctor import Checkup
from coldbench.measure.residency import Share

_MEND_WIDTH = 70


def evicted(certificate: Mapping[str, Any]) -> str:
    """Return the certificate of `make_cold` as text, a line a file."""
    rows = [
        [
            file["name"],
            f"{file['bytes']:,}",
            file["filesystem"],
            file["method"],
            f"{file['found_bytes']:,}",
            f"{file['left_bytes']:,}",
            "seen, evicted" if file.get("control_seen_bytes") else "empty file",
        ]
        for file in certificate["files"]
    ]
    headers = ["file", "bytes", "file system", "asked by", "were resident", "left", "control page"]
    align = ("left", "right", "left", "left", "right", "right", "left")
    return _table(rows, headers, align)


def resident(shares: Sequence[Share], what: str) -> str:
    """Return bytes and share in the page cache as text, a line a `what` (file or tensor)."""
    rows = [[share.name, f"{share.offset:,}", *_of(share.resident, share.size)] for share in shares]
    if len(shares) > 1 and what == "file":
        total = _of(sum(share.resident for share in shares), sum(share.size for share in shares))
        rows.append(["all", "", *total])
    headers = [what, "offset", "bytes", "resident", "share"]
    if what == "file":
        rows = [[row[0], *row[2:]] for row in rows]
        headers.remove("offset")
    return _table(rows, headers, ("left", *("right",) * (len(headers) - 1)))


def checkup(found: Checkup) -> str:
    """Return all findings as text, and the one sentence that they come to."""
    rows = [
        [finding.name, finding.value, finding.verdict, textwrap.fill(finding.mend, _MEND_WIDTH)]
        for finding in found.findings
    ]
    can = "can" if found.cold else "cannot"
    table = _table(rows, ["what", "found", "verdict", "mend"], ("left",) * 4)
    return f"{table}\n\n{found.place}: cold {can} be certified here\n"


def _of(resident: int, size: int) -> list[str]:
    return [f"{size:,}", f"{resident:,}", f"{resident / size:.1%}" if size else "n/a"]


def _table(rows: Sequence[Sequence[str]], headers: list[str], align: tuple[str, ...]) -> str:
    # Numbers are already spelled for reading; tabulate must not parse them again.
    return tabulate(rows, headers, tablefmt="simple", colalign=align, disable_numparse=True)
