"""JSON in a stream that may hold log lines too, be cut off, or carry C's nan and inf."""

import json
import math
import re
from typing import Any

_SPACE = re.compile(r"[\s,]*")
_BEGINS = re.compile(r"^[ \t]*(?=[\[{])", re.MULTILINE)
_FOLLOWS = re.compile(r"[ \t,]*(?=[\[{])")
# a log line may begin with { or [ as well: these are objects, and arrays of objects or arrays
_LIKELY = re.compile(r'\{\s*(?:["}]|\Z)|\[\s*(?:[\[{\]]|\Z)')
_BROKEN = re.compile(r'\{\s*(?:"|\Z)|\[\s*(?:\{\s*(?:"|\Z)|\Z)')
_MOST_FAILURES = 1000
"""Where the scan gives up: each failure costs the decoder a pass over the text before it."""
_BARE = re.compile(r"(?<=[:\[,])(\s*)(-?(?:nan|inf(?:inity)?))(?:\(ind\))?(?=\s*[,\]}])", re.I)


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


_DECODER = json.JSONDecoder(parse_constant=str, parse_float=_float)


def json_documents(text: str) -> tuple[list[Any], bool]:
    """Return the objects, and arrays of such, in lines of `text`, and whether one is damaged.

    Of an array that is cut off, the whole elements are returned as documents of their own.
    Figures that are not finite stay as text (`nan`), so that documents can be stored as JSON.
    """
    found, damaged = _scan(text)
    if damaged and _BARE.search(text):
        return _scan(_BARE.sub(r'\1"\2"', text))
    return found, damaged


def json_rows(stdout: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Return the objects in a tool's output, alone or in an array, and whether one is damaged."""
    documents, damaged = json_documents(stdout.decode("utf-8", "replace"))
    rows: list[dict[str, Any]] = []
    for document in documents:
        elements = document if isinstance(document, list) else [document]
        rows.extend(element for element in elements if isinstance(element, dict))
    return rows, damaged


def _scan(text: str) -> tuple[list[Any], bool]:
    found: list[Any] = []
    damaged = False
    failures = 0
    position = 0
    while match := _FOLLOWS.match(text, position) or _BEGINS.search(text, position):
        start = match.end()
        if not _LIKELY.match(text, start):
            position = _next_line(text, start)
            continue
        document, end = _decode(text, start)
        if end is not None and (isinstance(document, dict) or _line_ends(text, end)):
            found.append(document)
            position = end
            continue
        failures += 1
        if failures > _MOST_FAILURES:
            return found, True
        if _BROKEN.match(text, start):
            if text[start] == "[":
                return found + _whole_elements(text, start + 1), True
            damaged = True
        position = _next_line(text, start)
    return found, damaged


def _decode(text: str, start: int) -> tuple[Any, int | None]:
    try:
        document, end = _DECODER.raw_decode(text, start)
        return _plain(document), end
    except (ValueError, RecursionError):
        return None, None


def _plain(value: Any) -> Any:
    """Replace lone surrogates, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(element) for key, element in value.items()}
    return value


def _whole_elements(text: str, position: int) -> list[Any]:
    elements: list[Any] = []
    while True:
        begin = _SPACE.match(text, position)
        element, end = _decode(text, begin.end() if begin else position)
        if end is None:
            return elements
        elements.append(element)
        position = end


def _next_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1


def _line_ends(text: str, position: int) -> bool:
    return not text[position : _next_line(text, position)].strip()
