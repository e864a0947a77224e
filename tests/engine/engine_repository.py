"""A git repository of the engine's own source, with branches as its developers would have them."""

from pathlib import Path
from typing import NamedTuple

from coldbench.sources.content import sdist_entries
from coldbench.study.builds import Pin
from tests.unit.toy_repository import Repository

ROWS = "src/llama-impl.cpp"
STATUS = "src/llama-memory.cpp"
STRINGS = "src/llama-io.cpp"
GUARD = "ggml_backend_buffer_is_host(tensor->buffer) || n_rows == 0) {"


class Stack(NamedTuple):
    """Five pins, each with a rot of its own kind, and the four that stay of them, mended."""

    base: str
    rotten: list[Pin]
    mended: list[Pin]


def engine_repository(archive: Path, subfolder: str, folder: Path) -> Repository:
    """Make a repository whose first commit (tag `release`) is the source in an sdist."""
    for entry in sdist_entries(archive, subfolder):
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = entry.stream.read()
        if entry.mode == "120000":
            path.symlink_to(data.decode())
        else:
            path.write_bytes(data)
            path.chmod(int(entry.mode, 8) & 0o777)
    repository = Repository(folder)
    repository.git("config", "core.compression", "1")
    repository.git("config", "pack.window", "0")  # its fetches need not be small
    # The source ignores some of its own files.
    repository.git("add", "--all", "--force")
    repository.git("commit", "--quiet", "-m", "release")
    repository.git("tag", "release")
    return repository


def rot(engine: Repository) -> Stack:
    """Make branches and pull requests off the tag `base`, which is one commit after `release`."""

    def change(name: str, start: str, path: str, old: str, new: str) -> str:
        engine.branch(name, start)
        return engine.replace(path, old, new, message=name)

    engine.branch("main", "release")
    contained = engine.commit_files("early", {"docs/early.md": "early\n"})
    engine.git("tag", "base")
    # 1: no row readahead. Pushed over since: its pull request is another commit now.
    moved = change("rows", "base", ROWS, GUARD, GUARD.replace("n_rows == 0", "true"))
    rows = change("rows", "base", ROWS, GUARD, GUARD.replace("n_rows == 0", "n_rows < SIZE_MAX"))
    engine.pull(1, rows)
    # 2: changes the same line.
    clash = change("guard", "base", ROWS, GUARD, GUARD.replace("n_rows == 0", "n_rows < 1"))
    reserve = "mr.reserve(n_rows);"
    rebased = change("reserve", "base", ROWS, reserve, reserve.replace("n_rows", "n_rows + 1"))
    # 4: begun on a fork's main branch.
    engine.branch("fork", "release")
    for number in range(2):
        engine.commit_files("fork", {f"docs/fork{number}.md": "fork\n"})
    status = "bool has_update = false;"
    dragging = change("feature", "fork", STATUS, status, "bool has_update{};")
    clean = change("feature-rebased", "base", STATUS, status, "bool has_update{};")
    # 5: written for a newer interface.
    size = "std::vector<char> buf(str_size);"
    newer = change("strings", "base", STRINGS, size, size.replace("str_size", "limited(str_size)"))
    older = change("strings-mended", "base", STRINGS, size, "std::vector<char> buf(str_size, 0);")
    engine.git("checkout", "--quiet", "main")
    return Stack(
        engine.git("rev-parse", "base"),
        [
            Pin(commit=moved, pull=1),
            Pin(commit=clash),
            Pin(commit=contained),
            Pin(commit=dragging, ref="feature"),
            Pin(commit=newer, ref="strings"),
        ],
        [
            Pin(commit=rows, pull=1),
            Pin(commit=rebased, ref="reserve"),
            Pin(commit=clean, ref="feature-rebased"),
            Pin(commit=older, ref="strings-mended"),
        ],
    )
