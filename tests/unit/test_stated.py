"""What programs say of their commit and number, against the source that they were built from."""

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coldbench.sources.builds import prepare_build
from coldbench.sources.stated import labelled
from coldbench.study.builds import BinariesSource, Build, GitRepository, GitSource
from tests.unit.toy_repository import Repository, toy_repository

MAIN = """\
#include <stdio.h>
#include <string.h>
int main(int count, char ** words) {
    if (count > 1 && !strcmp(words[1], "--version")) {
        fprintf(stderr, "%VERSION%\\n");
        fprintf(stderr, "built with %s for %s\\n", "cc", "Linux");
        return 0;
    }
    printf("%BODY%\\n");
}
"""


def said(version: str, body: str = "x") -> str:
    return MAIN.replace("%VERSION%", version).replace("%BODY%", body)


@pytest.fixture
def toy(tmp_path: Path) -> Repository:
    toy = toy_repository(tmp_path / "toy")
    toy.commit_files("says", {"main.c": said("version: 1 (257813839)")})
    return toy


def build(toy: Repository, ref: str) -> Build:
    source = GitSource(git=GitRepository(url=str(toy.folder), ref=ref))
    return Build(source=source, targets=("toy",))


def program(folder: Path, version: str) -> Path:
    """Compile a program that says `version` as an engine does."""
    folder.mkdir(exist_ok=True)
    (folder / "main.c").write_text(said(version))
    subprocess.run(["cc", "-o", folder / "llama-bench", folder / "main.c"], check=True)
    (folder / "main.c").unlink()
    return folder


def test_builds_of_one_number_stay_apart_and_a_wrong_commit_is_told(
    toy: Repository, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As programs from shallow clones do, both say number 1; one commit is no branch's tip."""
    caplog.set_level(logging.INFO)
    first = toy.head()
    toy.commit_files("faster", {"main.c": said("version: 1 (257813839)", "y")})
    clone = tmp_path / "clone"
    toy.git("clone", "--quiet", "--depth=2", f"file://{toy.folder}", str(clone))
    shallow = Repository(clone)
    one, two = (prepare_build("b", build(shallow, ref), tmp_path / "c") for ref in (first, "main"))
    assert [one["source"]["commit"], two["source"]["commit"]] == [first, toy.head()]
    assert one["stated"] == two["stated"] == {"commit": "257813839", "number": 1}
    assert one["content"] != two["content"]
    assert one["notes"] == [
        f"the programs of build b say commit 257813839, its source is {first}: the build is named "
        "by its source"
    ]
    assert one["notes"][0] in caplog.text
    # Found in the cache, it is told again.
    assert prepare_build("b", build(toy, first), tmp_path / "c")["notes"] == one["notes"]


@pytest.mark.parametrize(
    ("version", "stated"),
    [
        ("version: 4382 (1a2b3c4d)", {"commit": "1a2b3c4d", "number": 4382}),
        ("version: 0.5.0-dev (build 1, commit 0c1e57098)", {"commit": "0c1e57098", "number": 1}),
        ("version: 0 (unknown)", {"commit": "unknown", "number": 0}),
        ("something else", None),
    ],
)
def test_both_spellings_are_read(tmp_path: Path, version: str, stated: Any) -> None:
    source = BinariesSource(binaries=str(program(tmp_path / "bin", version)))
    record = prepare_build("b", Build(source=source), tmp_path / "cache")
    assert (record["stated"], record["notes"]) == (stated, [])


@pytest.mark.parametrize(
    ("commit", "told"),
    [("1a2b3c4", False), ("1A2B3C4D" + "0" * 32, False), ("b4382", False), ("1a2b3c5", True)],
)
def test_ready_programs_are_held_against_the_commit_that_the_study_names(
    tmp_path: Path, commit: str, told: bool
) -> None:
    folder = program(tmp_path / "bin", "version: 1 (1a2b3c4d)")
    source = BinariesSource(binaries=str(folder), commit=commit)
    record = prepare_build("b", Build(source=source), tmp_path / "cache")
    assert record["source"]["commit"] == commit
    assert [f"its source is {commit}" in note for note in record["notes"]] == [True] * told


def test_only_an_engines_programs_are_asked(tmp_path: Path) -> None:
    stub = tmp_path / "llama-bench"
    stub.write_text(f"#!/bin/sh\necho built with %s for %s\ntouch {tmp_path}/ran\n")
    stub.chmod(0o755)
    files = {"llama-bench": {"path": str(stub)}}
    record = {"programs": files, "libraries": {}, "source": {"commit": "1" * 40}}
    assert labelled("b", record)["stated"] is None
    assert not (tmp_path / "ran").exists()
