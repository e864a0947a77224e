"""Sweeps of a study: one entry of a mapping that stands for many, written out before validation.

An entry with `sweep: {NAME: [VALUE, ...], ...}` is written out once for each combination of values:
`{NAME}` is replaced in its own name and in all its texts. In the matrix of arms `"*"` stands for
all levels of a factor.
"""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.study.words import Place, suggest

SECTIONS = ("models", "builds", "workloads", "comparisons")
"""Mappings whose entries may be sweeps, besides the levels of each factor."""

MOST_ENTRIES = 1000
"""That one entry may stand for: more is a slip, since each is measured."""

ALL = "*"
LATER = ("model", "rpc")
"""Marks that stay in arguments: drivers replace them."""

_SWEPT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MARK = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\}(?!\})")


def swept(data: Any, lines: dict[Place, int], path: Path) -> tuple[Any, dict[Place, int]]:
    """Return a study's plain data, and the lines of its values, with all sweeps written out.

    Raises ColdbenchError (file, line, key and the mend) for a sweep that cannot be.
    """
    writer = _Writer(lines, path)
    written = writer.sections(data, ())
    if isinstance(scales := data.get("scales"), dict):
        written["scales"] = {
            name: writer.sections(scale, ("scales", name)) for name, scale in scales.items()
        }
    return writer.all_levels(written), writer.lines


class _Writer:
    """Writes sweeps out; `lines` are the lines of all values, those written out included."""

    def __init__(self, lines: dict[Place, int], path: Path) -> None:
        self.lines = dict(lines)
        self._path = path

    def sections(self, data: Any, place: Place) -> Any:
        """Return a study, or what a scale says, with its sweeps written out."""
        if not isinstance(data, dict):
            return data  # the schema tells
        written = data | {
            section: self.mapping(data[section], (*place, section))
            for section in SECTIONS
            if section in data
        }
        if isinstance(factors := data.get("factors"), dict):
            written["factors"] = {
                name: self.mapping(levels, (*place, "factors", name))
                for name, levels in factors.items()
            }
        return written

    def all_levels(self, data: Any) -> Any:
        """Replace `"*"` in the matrix of arms by the names of all levels, or of all builds."""
        match data:
            case {"arms": {"matrix": dict(matrix)}}:
                pass
            case _:
                return data
        factors = data.get("factors")
        known = {**(factors if isinstance(factors, dict) else {}), "build": data.get("builds")}
        filled = dict(matrix)
        for factor, levels in matrix.items():
            if levels != ALL:
                continue
            if factor not in known:
                said = f"unknown factor {factor!r}{suggest(factor, [*known])}"
                raise self._fault(("arms", "matrix", factor), said)
            if isinstance(known[factor], dict):  # else the schema tells
                filled[factor] = [*known[factor]]
        return data | {"arms": data["arms"] | {"matrix": filled}}

    def mapping(self, entries: Any, place: Place) -> Any:
        """Return a mapping with each entry that is a sweep written out."""
        if not isinstance(entries, dict):
            return entries  # the schema tells
        written: dict[str, Any] = {}
        for name, entry in entries.items():
            if not (isinstance(entry, dict) and "sweep" in entry):
                self._add(written, name, entry, (*place, name))
                continue
            rest = {key: value for key, value in entry.items() if key != "sweep"}
            below = self._below((*place, name))
            for filled, values in self._combinations(name, entry["sweep"], rest, (*place, name)):
                self._add(written, filled, _filled(rest, values), (*place, name))
                # what is written out has the lines of the entry that it comes from
                self.lines |= {(*place, filled, *inside): line for inside, line in below.items()}
        return written

    def _add(self, written: dict[str, Any], name: str, entry: Any, place: Place) -> None:
        if name in written:
            raise self._fault(place, f"two entries are called {name}; rename one")
        written[name] = entry

    def _combinations(
        self, name: str, sweep: Any, rest: dict[str, Any], place: Place
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the name and the values of each entry that this one stands for."""
        where = (*place, "sweep")
        lists = self._lists(sweep, where)
        texts = _texts(rest)
        for swept_name in lists:
            mark = f"{{{swept_name}}}"
            if mark not in name:
                raise self._fault(
                    where, f"the entry's name needs {mark} in it, else all of them have one name"
                )
            if mark in _keys(rest):
                raise self._fault(where, f"{mark} stands in a key; only in values is it replaced")
            if mark not in texts:
                raise self._fault(where, f"no text of the entry has {mark}; use it or remove it")
        for unknown in _MARK.findall(name + texts):
            if unknown not in {*lists, *LATER}:
                raise self._fault(
                    where, f"{{{unknown}}} is not swept here{suggest(unknown, [*lists])}"
                )
        size = math.prod(map(len, lists.values()))
        if size > MOST_ENTRIES:
            raise self._fault(where, f"stands for {size} entries, more than {MOST_ENTRIES}")
        for combination in itertools.product(*lists.values()):
            values = dict(zip(lists, combination, strict=True))
            yield _filled(name, values), values

    def _lists(self, sweep: Any, place: Place) -> dict[str, list[str]]:
        if not isinstance(sweep, dict) or not sweep:
            raise self._fault(place, "needs a mapping from names to lists: {n: [1, 2]}")
        lists: dict[str, list[str]] = {}
        for name, given in sweep.items():
            values = [given] if isinstance(given, str) else given
            if not _SWEPT_NAME.fullmatch(name):
                raise self._fault((*place, name), "names of sweeps are letters, digits and _")
            if not (isinstance(values, list) and values) or not all(
                isinstance(value, str) for value in values
            ):
                raise self._fault((*place, name), "needs a list of single values: [1, 2]")
            if len(set(values)) != len(values):
                raise self._fault((*place, name), "a value stands twice; remove one")
            lists[name] = values
        return lists

    def _below(self, place: Place) -> dict[Place, int]:
        depth = len(place)
        return {
            inside[depth:]: line for inside, line in self.lines.items() if inside[:depth] == place
        }

    def _fault(self, place: Place, message: str) -> ColdbenchError:
        key = ".".join(str(part) for part in place)
        while place not in self.lines and place:
            place = place[:-1]
        return ColdbenchError(f"{self._path}:{self.lines.get(place, 1)}: {key}: {message}")


def _filled(value: Any, values: dict[str, str]) -> Any:
    match value:
        case str():
            return _MARK.sub(lambda mark: values.get(mark[1], mark[0]), value)
        case list():
            return [_filled(item, values) for item in value]
        case dict():
            return {key: _filled(item, values) for key, item in value.items()}
    return value


def _texts(value: Any) -> str:
    """Return all texts in a value, one after the other."""
    match value:
        case str():
            return value
        case list():
            return "\n".join(map(_texts, value))
        case dict():
            return "\n".join(map(_texts, value.values()))
    return ""


def _keys(value: Any) -> str:
    """Return all keys in a value, one after the other."""
    match value:
        case list():
            return "\n".join(map(_keys, value))
        case dict():
            return "\n".join([*value, *map(_keys, value.values())])
    return ""
