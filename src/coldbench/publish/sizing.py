"""What `coldbench sizing` prints: how large models are, their table apart, and what can be lazy."""

import re
from collections import Counter
from collections.abc import Sequence

from gguf.constants import Keys, LlamaFileType
from tabulate import tabulate

from coldbench.common.text import visible
from coldbench.sources.header import ModelMap, Tensor, find_table
from coldbench.sources.header.lazy import FLAGGED_AT, lazy_reading
from coldbench.sources.survey import Survey, Surveyed

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_TIER = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:[IT]?Q\d+(?:_[A-Z0-9]+)*|MXFP4(?:_[A-Z0-9]+)*|BF16|F16|F32))$",
    re.IGNORECASE,
)
_NONE = "-"
_SHOWN_LARGE = 3


def sizing(found: Survey) -> str:
    """Return the tables of a survey as text: sizes in GB and in bytes, lazy reading, faults.

    GB are 10^9 bytes. `weights` is all of the files but the table, headers too.
    """
    read = [entry for entry in found.models if entry.model is not None]
    read.sort(key=lambda entry: _map(entry).size)
    labels = _labels(read)
    rows = [(labels[entry.name], _map(entry)) for entry in read]
    parts = [
        f"{found.place}: {len(read)} model(s)",
        _table([_in_gb(*row) for row in rows], _GB_HEADERS),
        _table([_in_bytes(entry) for entry in read], _BYTE_HEADERS),
        _table([line for row in rows for line in _lazy(*row)], _LAZY_HEADERS),
        f"lazy: auto and on = read lazily with --lazy-mode auto and on; on = only with on; never = "
        f"whatever is asked. Architectures' flags as of llama.cpp {FLAGGED_AT}.",
        *(f"note: {note}" for entry in read for note in _map(entry).notes),
        *(f"not read: {entry.fault}" for entry in found.models if entry.fault is not None),
        _fetched(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_GB_HEADERS = {
    "tier": "left",
    "total GB": "right",
    "table GB": "right",
    "weights GB": "right",
    "table's type": "left",
    "table's rows": "right",
    "architecture": "left",
}
_BYTE_HEADERS = {
    "model": "left",
    "files": "right",
    "total bytes": "right",
    "table bytes": "right",
    "weights bytes": "right",
    "fetched bytes": "right",
    "ranges": "right",
}
_LAZY_HEADERS = {
    "tier": "left",
    "tensor": "left",
    "type": "left",
    "bytes": "right",
    "lazy": "left",
    "why": "left",
}


def _map(entry: Surveyed) -> ModelMap:
    assert entry.model is not None
    return entry.model


def _labels(read: Sequence[Surveyed]) -> dict[str, str]:
    """Return each model's quant tier, or its name where there is none or two have the same."""
    tiers = {entry.name: _tier(entry) for entry in read}
    count = Counter(tiers.values())
    return {
        name: tier if tier is not None and count[tier] == 1 else visible(_stem(name), breaks=False)
        for name, tier in tiers.items()
    }


def _tier(entry: Surveyed) -> str | None:
    if match := _TIER.search(_stem(entry.name)):
        return match[1]
    kind = _map(entry).metadata.get(Keys.General.FILE_TYPE)
    if not isinstance(kind, int):
        return None
    try:
        return LlamaFileType(kind).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return None


def _stem(name: str) -> str:
    return _SHARD.sub("", name.removesuffix(".gguf"))


def _in_gb(label: str, model: ModelMap) -> list[str]:
    table = find_table(model, None)
    return [
        label,
        _gb(model.size),
        _NONE if table is None else _gb(table.size),
        _gb(model.size - (0 if table is None else table.size)),
        _NONE if table is None else table.type,
        _NONE if table is None else f"{table.rows:,}",
        visible(model.architecture or _NONE, breaks=False),
    ]


def _in_bytes(entry: Surveyed) -> list[str]:
    model = _map(entry)
    table = find_table(model, None)
    traffic = entry.traffic
    return [
        visible(entry.name, breaks=False),
        f"{len(model.files)}",
        f"{model.size:,}",
        _NONE if table is None else _bytes(table),
        f"{model.size - (0 if table is None else table.size):,}",
        _NONE if traffic is None else f"{traffic.bytes:,}",
        _NONE if traffic is None else f"{traffic.requests}",
    ]


def _lazy(label: str, model: ModelMap) -> list[list[str]]:
    judged = lazy_reading(model)
    hopeless = [one for one in judged if one.mode == "never" and one.tensor.size > 0]
    hopeless.sort(key=lambda one: -one.tensor.size)
    hidden = {one.tensor.name for one in hopeless[_SHOWN_LARGE:]}
    lines = [
        [
            label,
            visible(one.tensor.name, breaks=False),
            one.tensor.type,
            _bytes(one.tensor),
            "auto and on" if one.mode == "auto" else one.mode,
            one.reason,
        ]
        for one in judged
        if one.tensor.name not in hidden
    ]
    if hidden:
        rest = sum(one.tensor.size for one in hopeless[_SHOWN_LARGE:])
        lines.append([label, f"{len(hidden)} more", "", f"{rest:,}", "never", "as those before"])
    return lines


def _fetched(found: Survey) -> str:
    cost = found.traffic
    if cost is None:
        return ""
    return (
        f"fetched {cost.bytes:,} bytes in {cost.requests:,} range requests for the headers of "
        f"{cost.files:,} file(s)"
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.3f}"


def _bytes(tensor: Tensor) -> str:
    return f"{tensor.size:,}" + ("?" if tensor.size_inferred else "")


def _table(rows: Sequence[Sequence[str]], headers: dict[str, str]) -> str:
    if not rows:
        return ""
    # Numbers are already spelled for reading; tabulate must not parse them again.
    return tabulate(
        rows,
        list(headers),
        tablefmt="simple",
        colalign=tuple(headers.values()),
        disable_numparse=True,
    )
