"""Reading a study file strictly: every scalar is the text that was written, every fault has a line.

YAML's own guesses lose what people write (`off` becomes false, `0123456` an octal number, `12e4567`
infinity, a second key of the same name silently wins), so scalars stay text here and the schema
decides what a key wants.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from coldbench.common.errors import ColdbenchError
from coldbench.common.text import visible
from coldbench.study.scales import chosen_scale, scaled
from coldbench.study.schema import StudyFile
from coldbench.study.sweeps import swept
from coldbench.study.words import Place, suggest

MOST_VALUES = 200_000
"""More than any study needs: what a few lines of nested aliases expand to is refused."""

Kind = TypeVar("Kind", bound=BaseModel)


def read_study(path: Path, scale: str | None = None) -> StudyFile:
    """Read and validate a study file at a scale; by default at the one that it selects.

    Raises ColdbenchError with one line a fault (file, line, key and the mend), all faults at once.
    """
    data, lines = _load(path)
    chosen = chosen_scale(data, lines, path)
    try:
        return _validated(*_laid_out(data, lines, scale or chosen, path), path, StudyFile)
    except ColdbenchError as error:
        faults = [f"{fault}{at_scale(scale)}" for fault in str(error).splitlines()]
        raise ColdbenchError("\n".join(faults)) from None


def at_scale(scale: str | None) -> str:
    """Return what to add to a fault that shows at a scale which the file does not select."""
    return f" (at the scale {scale})" if scale else ""


def _laid_out(
    data: Any, lines: dict[Place, int], scale: str | None, path: Path
) -> tuple[Any, dict[Place, int]]:
    """Return the plain data at a scale, with its sweeps written out, and the lines of it all."""
    return swept(*scaled(data, lines, scale), path)


def read_strictly(path: Path, kind: type[Kind]) -> Kind:
    """Read and validate a YAML file of another kind as strictly as a study file."""
    return _validated(*_load(path), path, kind)


def _validated(data: Any, lines: dict[Place, int], path: Path, kind: type[Kind]) -> Kind:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults = [
            f"{path}:{_line(lines, _place(fault['loc'], data))}: {_explain(fault, data, kind)}"
            for fault in found
            # pydantic counts only the good items of a list: a wrong one is told, not that it lacks
            if fault["type"] != "too_short" or not _told_below(fault["loc"], found)
        ]
        raise ColdbenchError("\n".join(dict.fromkeys(faults))) from None


def _told_below(place: tuple[Any, ...], faults: Sequence[Any]) -> bool:
    depth = len(place)
    return any(len(fault["loc"]) > depth and fault["loc"][:depth] == place for fault in faults)


def line_of(path: Path, place: Place, scale: str | None = None) -> int:
    """Return the line on which the value at `place` begins, for faults found after validation."""
    data, lines = _load(path)
    chosen = chosen_scale(data, lines, path)
    return _line(_laid_out(data, lines, scale or chosen, path)[1], place)


def _load(path: Path) -> tuple[Any, dict[Place, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ColdbenchError(f"{path}: cannot be read: {reason}") from None
    lines: dict[Place, int] = {}
    try:
        node = YAML(typ="rt", pure=True).compose(text)
        if not isinstance(node, MappingNode):
            raise ColdbenchError(
                f"{path}: empty, or not a mapping of keys: is this the right file?"
            )
        return _plain(node, (), lines, path, ()), lines
    except RecursionError:
        raise ColdbenchError(f"{path}: nested too deeply") from None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ColdbenchError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    except YAMLError as error:
        message = " ".join(str(error).split())
        raise ColdbenchError(f"{path}: not valid YAML: {message}") from None


def _plain(
    node: Node, place: Place, lines: dict[Place, int], path: Path, open_nodes: tuple[int, ...]
) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(place, line)
    if len(lines) > MOST_VALUES:
        raise ColdbenchError(
            f"{path}:{line}: more than {MOST_VALUES} values; do aliases (*NAME) multiply?"
        )
    if id(node) in open_nodes:
        raise ColdbenchError(f"{path}:{line}: an anchor that contains itself")
    inside = (*open_nodes, id(node))
    match node:
        case ScalarNode():
            return _scalar(node, path)
        case SequenceNode():
            return [
                _plain(item, (*place, index), lines, path, inside)
                for index, item in enumerate(node.value)
            ]
        case MappingNode():
            mapping: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key_line = key_node.start_mark.line + 1
                if not isinstance(key_node, ScalarNode):
                    raise ColdbenchError(f"{path}:{key_line}: a key must be a single word")
                key = _scalar(key_node, path)
                if key in mapping:
                    first = lines[*place, key]
                    raise ColdbenchError(
                        f"{path}:{key_line}: key {key!r} stands twice (first on line {first}); "
                        "rename or remove one"
                    )
                lines[*place, key] = key_line
                mapping[key] = _plain(value_node, (*place, key), lines, path, inside)
            return mapping
    raise ColdbenchError(f"{path}:{line}: unexpected YAML")


def _scalar(node: ScalarNode, path: Path) -> str:
    text = str(node.value)
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text):
        raise ColdbenchError(
            f"{path}:{node.start_mark.line + 1}: {text[:40]!r} has a character that no command "
            "line can hold (\\0 or half of a surrogate pair); remove it"
        )
    return text


def _place(location: tuple[Any, ...], data: Any) -> Place:
    """Drop from pydantic's location what is not in the file: tags of unions, `[key]` marks."""
    place: list[str | int] = []
    here = data
    for part, following in zip(location, (*location[1:], None), strict=True):
        inside = _get(here, part)
        if inside is None:
            continue
        if _get(here, following) is not None and _get(inside, following) is None:
            continue  # a union's tag that is also the name of a key
        here = inside
        place.append(part)
    return tuple(place)


def _get(container: Any, part: Any) -> Any:
    if isinstance(container, dict):
        return container.get(part)
    if isinstance(container, list) and isinstance(part, int) and part < len(container):
        return container[part]
    return None


def _line(lines: dict[Place, int], place: Place) -> int:
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


def _explain(fault: Any, data: Any, kind: type[BaseModel]) -> str:
    place = _place(fault["loc"], data)
    key = visible(".".join(str(part) for part in place), breaks=False) or "the file"
    last = str(fault["loc"][-1]) if fault["loc"] else ""
    match fault["type"]:
        case "extra_forbidden":
            return f"unknown key {key}{_nearest(last, fault, place, data, kind)}"
        case "missing":
            return f"{key}: the key {last} is missing"
        case "union_tag_invalid":
            given = str(fault["ctx"]["tag"])
            known = re.findall(r"'([^']+)'", fault["ctx"]["expected_tags"])
            return f"{key}: unknown driver {given!r}{suggest(given, known)}"
        case "union_tag_not_found":
            return f"{key}: the key driver is missing"
        case "string_pattern_mismatch":
            return f"{key}: {_given(fault)} does not have the form {fault['ctx']['pattern']}"
        case "tuple_type":
            return f"{key}: needs a list, such as [one, two], not {_given(fault)}"
        case "value_error" | "source":
            return f"{key}: {str(fault['msg']).removeprefix('Value error, ')}"
        case _:
            return f"{key}: {fault['msg']}, not {_given(fault)}"


def _given(fault: Any) -> str:
    text = repr(fault["input"])
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest(key: str, fault: Any, place: Place, data: Any, kind: type[BaseModel]) -> str:
    known = _fields_at(kind, fault["loc"][:-1])
    here = data
    for part in place[:-1]:
        here = here[part]
    taken = set(here) if isinstance(here, dict) else set()
    return suggest(key, [name for name in known if name not in taken] or known)


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Return the keys that the schema knows at a place, by walking the generated JSON schema."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})

    def resolve(node: dict[str, Any]) -> list[dict[str, Any]]:
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rsplit("/", 1)[1]])
        for key in ("anyOf", "oneOf", "allOf"):
            if key in node:
                return [found for option in node[key] for found in resolve(option)]
        return [node]

    nodes = resolve(schema)
    for part in location:
        following: list[dict[str, Any]] = []
        for node in nodes:
            if part in node.get("properties", {}):
                following += resolve(node["properties"][part])
            elif values := list(node.get("patternProperties", {}).values()):
                following += resolve(values[0])
            elif isinstance(node.get("additionalProperties"), dict):
                following += resolve(node["additionalProperties"])
            elif isinstance(part, int) and isinstance(node.get("items"), dict):
                following += resolve(node["items"])
        # A union's tag is in the location but not in the schema: it narrows the options.
        if following:
            nodes = following
        else:
            nodes = [
                node
                for node in nodes
                if part in node.get("properties", {})
                or node.get("properties", {}).get("driver", {}).get("const") == part
            ] or nodes
    return [name for node in nodes for name in node.get("properties", {})]
