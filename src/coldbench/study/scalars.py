"""The scalars of a study file: sizes, durations, names, paths, from the text that was written."""

import os
import re
import urllib.parse
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|KiB|MiB|GiB|TiB)", re.ASCII)
_UNIT_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_LARGEST_BYTES = 2**52
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h)", re.ASCII)
_UNIT_SECONDS = {"s": 1, "min": 60, "h": 3600}
_LONGEST_S = 8760 * 3600
LEAST_BUDGET_BYTES = 2**20
_LARGEST_SHARE = 100.0
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%", re.ASCII)
_SECRET_KEY = re.compile(
    r"(?:^|[&;])(?:[a-z0-9_-]*token|[a-z0-9_-]*signature|sig|api[_-]?key|key-pair-id|"
    r"x-amz-[a-z-]+|x-goog-[a-z-]+)=",
    re.IGNORECASE,
)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*$"
NAME_LENGTH = 64
"""Names become folder names, wildcards and table rows: no spaces, no slash, no leading dash."""


def size_bytes(text: str) -> int:
    """Return a size such as 512MiB in bytes. Raises ValueError where it is none."""
    if match := _SIZE.fullmatch(text):
        size = float(match[1]) * _UNIT_BYTES[match[2]]
        if size >= _LARGEST_BYTES:
            raise ValueError("a size must be below 4096 TiB")
        return round(size)
    raise ValueError("a size is a number with a binary unit, such as 512MiB or 8GiB")


def _size(value: Any) -> Any:
    return value if isinstance(value, int) else size_bytes(str(value))


def _duration(value: Any) -> Any:
    if isinstance(value, float | int):
        return value
    if match := _DURATION.fullmatch(str(value)):
        seconds = float(match[1]) * _UNIT_SECONDS[match[2]]
        if seconds > _LONGEST_S:
            raise ValueError("a duration must be at most 8760h (a year)")
        return seconds
    raise ValueError("a duration is a number with a unit, such as 90s, 10min or 2h")


def _percent(value: Any) -> Any:
    if isinstance(value, float | int):
        return value
    if match := _PERCENT.fullmatch(str(value)):
        return float(match[1]) / 100
    raise ValueError("a margin is in per cent, such as 3%")


def _budget(value: Any) -> Any:
    if match := _PERCENT.fullmatch(str(value)):
        share = float(match[1]) / 100
        if not 0 < share <= _LARGEST_SHARE:
            raise ValueError(f"a share of the model is above 0% and at most {_LARGEST_SHARE:.0%}")
        return share
    try:
        size = _size(value)
    except ValueError as error:
        raise ValueError(f"{error}; or a share of the model, such as 50%") from None
    if size < LEAST_BUDGET_BYTES:
        raise ValueError(f"a budget is at least {LEAST_BUDGET_BYTES >> 20}MiB")
    return size


def _regular_expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def _text_pattern(value: str) -> str:
    if re.compile(value).groups < 1:
        raise ValueError("needs a group: the generated text")
    return value


def _local_path(value: str) -> str:
    if len(value) > 4000 or any(len(os.fsencode(part)) > 255 for part in value.split("/")):
        raise ValueError("is too long for a path")
    try:
        expanded(value)
    except ColdbenchError as error:
        raise ValueError(str(error)) from None
    return value


def _repository_path(value: str) -> str:
    parts = value.split("/")
    if any(part in {"", ".", ".."} or len(os.fsencode(part)) > 200 for part in parts):
        raise ValueError("must be a path inside the repository: no .., no leading or double slash")
    if "\\" in value or not value.isprintable():
        raise ValueError("has a backslash or a control character")
    return value


def _repository(value: str) -> str:
    if "--" in value or ".." in value or value.endswith(".git"):
        raise ValueError("cannot have --, .. or an ending .git; write OWNER/NAME as the hub does")
    return value


def _revision(value: str) -> str:
    if not value.isprintable() or not value.strip() or value.startswith("-"):
        raise ValueError("is no branch, tag or commit")
    return value


def _web_address(value: str) -> str:
    try:
        parts = urllib.parse.urlsplit(value)
        host = parts.hostname
        _ = parts.port  # it raises where the port is none
    except ValueError as error:
        raise ValueError(f"is no web address: {error}") from None
    if parts.scheme not in {"https", "http"} or not host or not value.isprintable():
        raise ValueError("must be an https address of a file")
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a user or a password; a study must not hold secrets")
    if _SECRET_KEY.search(parts.query):
        raise ValueError(
            "is signed or has a token: such an address expires, and a study must not hold secrets; "
            "use the plain one"
        )
    return value


def listed(value: Any) -> Any:
    """Return a single word as a list of one."""
    return (value,) if isinstance(value, str) else value


_QUANTITY = WithJsonSchema({"type": "string", "format": "quantity"})
Text = str
"""Any scalar, as it was written."""

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]
Names = Annotated[
    tuple[Name, ...],
    Field(min_length=1),
    BeforeValidator(listed, json_schema_input_type=Name | tuple[Name, ...]),
]
"""Names, of which one alone need not be in a list."""

Size = Annotated[int, BeforeValidator(_size), Field(gt=0), _QUANTITY]
Duration = Annotated[float, BeforeValidator(_duration), Field(gt=0), _QUANTITY]
Percent = Annotated[float, BeforeValidator(_percent), Field(gt=0, lt=1), _QUANTITY]
Budget = Annotated[
    int | float,
    BeforeValidator(_budget),
    _QUANTITY,
]
"""Bytes (int), or a share of the model's bytes (float)."""

RegularExpression = Annotated[str, AfterValidator(_regular_expression)]
TextPattern = Annotated[RegularExpression, AfterValidator(_text_pattern)]
LocalPath = Annotated[str, Field(min_length=1), AfterValidator(_local_path)]
Arguments = tuple[Text, ...]
Environment = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Text]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Requirement = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+$")]
Repository = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=96),
    AfterValidator(_repository),
]
RepositoryPath = Annotated[
    str, Field(min_length=1, max_length=1000), AfterValidator(_repository_path)
]
Revision = Annotated[Text, Field(min_length=1, max_length=200), AfterValidator(_revision)]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
WebAddress = Annotated[str, Field(max_length=4000), AfterValidator(_web_address)]
