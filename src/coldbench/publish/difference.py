"""What differs between two provenances: `coldbench diff`, for "your figures are not mine"."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import read_json

SECTIONS = ("study", "lock", "coldbench", "python", "packages", "models", "builds", "machines")
"""Compared key by key, in this order; `cells` come after them, by name."""

_INCIDENTAL = frozenset({"mtime_ns", "ctime_ns", "seconds", "ccache", "log", "stamp", "ref_stamp"})
"""What may differ between two preparations of the same thing."""


def difference(first: Path, second: Path) -> list[str]:
    """Return the lines that tell how two studies' provenances differ; none where they do not.

    A provenance is its file, or the results folder that holds it. Where things lie (cache and
    checkout) and when they were made does not count. Cells are the same when model, workload and
    arm have the same names; a difference that several cells share is told once.
    Raises ColdbenchError naming a file that is not a provenance.
    """
    one, two = _read(first), _read(second)
    lines = []
    for section in SECTIONS:
        lines += _changes(section, one.get(section), two.get(section))
    return lines + _cell_changes(_cells(one), _cells(two))


def _read(place: Path) -> dict[str, Any]:
    path = place / "provenance.json" if place.is_dir() else place
    needs = ("study", "coldbench", "packages", "models", "builds", "machines", "cells")
    if not path.exists():
        raise ColdbenchError(f"{path}: does not exist; name a study's results folder")
    try:
        return _without_places(read_json(path, needs))
    except (ColdbenchError, AttributeError, KeyError, TypeError):
        raise ColdbenchError(
            f"{path}: is not a provenance; name a study's results folder"
        ) from None


def _without_places(found: dict[str, Any]) -> dict[str, Any]:
    """Give files of the cache the names that they have in the study."""
    names = {}
    for kind in ("models", "builds"):
        for name, record in found[kind].items():
            for key, file in record.get("programs", {}).items():
                names[file["path"]] = f"<{name}>/{key}"
            for key, file in record.get("libraries", {}).items():
                names[file["path"]] = f"<{name}>/{key}"
            for number, file in enumerate(record.get("files", ()), start=1):
                names[file["path"]] = f"<{name}>/{number}"
            if "path" in record:
                names[record["path"]] = f"<{name}>"
    found["study"]["file"] = Path(found["study"]["file"]).name
    renamed: dict[str, Any] = _renamed(found, names)
    return renamed


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    match value:
        case dict():
            return {
                key: _renamed(inner, names)
                for key, inner in value.items()
                if key not in _INCIDENTAL
            }
        case list():
            return [_renamed(inner, names) for inner in value]
        case str():
            return names.get(value, value)
    return value


# --- trees of plain data ------------------------------------------------------------------------


def _changes(place: str, one: Any, two: Any) -> list[str]:
    """Return the changes below `place`, each with its path of keys."""
    return [f"{path}{told}" for path, told in _walk(place, one, two)]


def _walk(place: str, one: Any, two: Any) -> Iterator[tuple[str, str]]:
    if one == two:
        return
    match one, two:
        case dict(), dict():
            for key in dict.fromkeys((*one, *two)):
                inner = f"{place}.{key}" if place else str(key)
                yield from _walk(inner, one.get(key), two.get(key))
        case list(), list() if len(one) == len(two) and not _words(one, two):
            for number, (left, right) in enumerate(zip(one, two, strict=True)):
                yield from _walk(f"{place}[{number}]", left, right)
        case str(), str() if "\n" in one or "\n" in two:
            yield place, ":\n" + _text_diff(one, two)
        case _:
            yield place, f": {_told(one)} -> {_told(two)}"


def _words(one: Sequence[Any], two: Sequence[Any]) -> bool:
    return all(isinstance(item, str) for item in (*one, *two))


def _told(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case list() if _words(value, ()):
            return " ".join(value) or "nothing"
        case dict() | list():
            return ", ".join(f"{path}{told}" for path, told in _leaves("", value)) or "nothing"
    text = str(value)
    return text if "\n" not in text else f"a text of {text.count(chr(10))} lines"


def _leaves(place: str, value: Any) -> Iterator[tuple[str, str]]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from _leaves(f"{place}.{key}" if place else str(key), inner)
        case list() if not _words(value, ()):
            for number, inner in enumerate(value):
                yield from _leaves(f"{place}[{number}]", inner)
        case _:
            yield place, f"={_told(value)}"


def _text_diff(one: str, two: str) -> str:
    found = difflib.unified_diff(one.splitlines(), two.splitlines(), lineterm="", n=1)
    return "\n".join(f"    {line}" for line in [*found][2:])


# --- cells --------------------------------------------------------------------------------------


def _cells(found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the cells by name; several where an edit left results of other content behind."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for cell in found["cells"].values():
        name = f"{cell['model']}, {cell['workload']}, {cell['arm']}"
        cells.setdefault(name, []).append(cell)
    return cells


def _cell_changes(
    one: Mapping[str, list[dict[str, Any]]], two: Mapping[str, list[dict[str, Any]]]
) -> list[str]:
    shared: dict[str, list[str]] = {}
    for name in dict.fromkeys((*one, *two)):
        if name not in one or name not in two:
            told = ["only in the second" if name in two else "only in the first"]
        else:
            told = [f"{path}{change}" for path, change in _walk("", one[name][-1], two[name][-1])]
        for change in told:
            shared.setdefault(change, []).append(name)
    count = len(dict.fromkeys((*one, *two)))
    return [
        f"cells: {change} ({'all cells' if len(names) == count > 1 else '; '.join(names)})"
        for change, names in shared.items()
    ]
