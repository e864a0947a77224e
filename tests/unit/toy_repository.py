"""Git repositories of a toy CMake project, made by the tests."""

import os
import subprocess
from pathlib import Path

from coldbench.study.builds import Build, GitRepository, GitSource, Pin

CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.14)
project(toy C)
file(GLOB parts CONFIGURE_DEPENDS part*.c)
add_executable(toy main.c ${parts})
"""
MAIN = """\
#include <assert.h>
#include <stdio.h>
#include "toy.h"

int one(void) {
    return 1;
}

int two(void) {
    return 2;
}

int three(void) {
    return 3;
}

int main(void) {
    assert(one() + two() + three() > 0);
    printf("%d %d %d\\n", one(), two(), three());
}
"""
HEADER = """\
int one(void);
int two(void);
int three(void);
"""
FILES = {"CMakeLists.txt": CMAKE_LISTS, "main.c": MAIN, "toy.h": HEADER, "README": "a toy\n"}


class Repository:
    """A repository with a work tree; commits have a date that only counts up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clock = 1_700_000_000
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / ".git").exists():
            self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        self._clock += 1
        fixed = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_NAME": "Toy" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "toy@localhost" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_DATE": f"@{self._clock} +0000" for who in ("AUTHOR", "COMMITTER")},
        }
        command = ["git", "-c", "protocol.file.allow=always", "-C", str(self.folder), *arguments]
        done = subprocess.run(
            command, env=os.environ | fixed, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, message: str = "change", **files: str) -> str:
        """Commit new contents (keyword `main_c` is main.c); return the full commit."""
        named = {name.replace("_", "."): text for name, text in files.items()}
        return self.commit_files(message, named)

    def commit_files(self, message: str, files: dict[str, str]) -> str:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.head()

    def replace(self, name: str, old: str, new: str, message: str = "change") -> str:
        """Commit one replacement in a file of the branch that is checked out."""
        text = (self.folder / name).read_text()
        assert text.count(old) == 1, (name, old)
        return self.commit_files(message, {name: text.replace(old, new)})

    def branch(self, name: str, start: str) -> None:
        """Check a new branch out."""
        self.git("checkout", "--quiet", "-B", name, start)

    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def pull(self, number: int, commit: str) -> None:
        """Set the head of a pull request, as a forge does."""
        self.git("update-ref", f"refs/pull/{number}/head", commit)

    def forget(self, branch: str) -> None:
        """Delete a branch."""
        self.git("checkout", "--quiet", "main")
        self.git("branch", "--quiet", "-D", branch)


def toy_repository(folder: Path) -> Repository:
    """Make a repository whose first commit prints `1 2 3`."""
    repository = Repository(folder)
    repository.commit_files("toy", FILES)
    return repository


def output(record: dict) -> str:
    """Run a build's program."""
    program = record["programs"]["toy"]["path"]
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def build(toy: Repository, *pins: Pin | str, ref: str = "v1", commit: str | None = None) -> Build:
    source = GitSource(git=GitRepository(url=str(toy.folder), ref=ref, commit=commit))
    return Build(source=source, pins=[Pin.model_validate(one) for one in pins], targets=("toy",))


def change(toy: Repository, name: str, old: str, new: str, start: str = "v1") -> str:
    """Commit one replacement in main.c on a new branch `name`."""
    toy.branch(name, start)
    return toy.replace("main.c", old, new, message=name)
