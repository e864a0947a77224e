"""The scalars of git sources: addresses, refs and full commits, from the text that was written."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from coldbench.study.scalars import Text

FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
# git-check-ref-format(1); `~` and its like would be expressions, which a server does not know.
_NO_REF = re.compile(r"[\s\0-\x1f\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.lock$|\.$|^[-/]")
_TRANSPORT = re.compile(r"^[A-Za-z0-9]+::")
_WITH_USER = re.compile(r"^https?://[^/]*@", re.IGNORECASE)


def _address(value: str) -> str:
    if value.startswith("-") or not value.isprintable() or _TRANSPORT.match(value):
        raise ValueError("is no address or path of a git repository")
    if _WITH_USER.match(value) or re.match(r"^\w+://[^/@]*:[^/@]*@", value):
        raise ValueError(
            "has a user or a password; a study must not hold secrets: leave them to git's "
            "credential helper or to ssh"
        )
    return value


def _ref(value: str) -> str:
    if _NO_REF.search(value):
        raise ValueError("is no branch, tag, commit, pull/NUMBER or full name (refs/...)")
    return value


def _commit(value: str) -> str:
    if not FULL_COMMIT.fullmatch(value):
        raise ValueError(
            f"{value[:60]!r} is no full commit (40 digits, 0-9 and a-f): a short one or a branch "
            "may come to mean another; `git rev-parse NAME` prints it"
        )
    return value


GitAddress = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_address)]
GitRef = Annotated[Text, Field(min_length=1, max_length=250), AfterValidator(_ref)]
FullCommit = Annotated[Text, AfterValidator(_commit)]
