"""The text of `coldbench models`."""

from collections.abc import Sequence

from tabulate import tabulate

from coldbench.sources.inventory import Stock


def stocktaking(stocks: Sequence[Stock]) -> str:
    """Return how a study's models stand as a table for people; sizes in bytes and MiB."""
    rows = [
        [
            stock.name,
            stock.state,
            "n/a" if stock.bytes is None else f"{stock.bytes:,}",
            "n/a" if stock.bytes is None else f"{stock.bytes / 2**20:,.1f}",
            "n/a" if stock.files is None else str(stock.files),
            stock.note,
        ]
        for stock in stocks
    ]
    return tabulate(
        rows,
        ["model", "state", "bytes", "MiB", "files", "note"],
        tablefmt="simple",
        colalign=("left", "left", "right", "right", "right", "left"),
        disable_numparse=True,
    )
