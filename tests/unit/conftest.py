"""What several of the unit tests need."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.cgroup import Group, memory_controller, own_group
from coldbench.measure.launcher import Launched, environment_for, launch
from coldbench.measure.native import launcher_program

from .gguf_files import gguf, key, text

MIB = 2**20


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launcher_program(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def real() -> None:
    """Skip where this machine lets nobody, or not us, limit memory."""
    if memory_controller() is None:
        pytest.skip("no cgroup memory controller on this machine")
    try:
        with own_group(64 * MIB, "probe", Path(__file__)):
            pass
    except ColdbenchError as error:
        pytest.skip(str(error))


@pytest.fixture
def run_in(launcher: Path, tmp_path: Path) -> Callable[..., Launched]:
    """Run a command in a group; its output is `out` and `err` in the test's folder."""

    def run(group: Group, *argv: str, environment: dict[str, str] | None = None) -> Launched:
        return launch(
            launcher,
            argv,
            environment_for(environment or {}, tmp_path),
            stdout=tmp_path / "out",
            stderr=tmp_path / "err",
            time_limit_s=60,
            output_limit_bytes=MIB,
            group=group,
        )

    return run


@pytest.fixture(scope="session")
def big_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 150,000 tokens, and a key that stands after them."""
    tokens = [text(f"tok{number:06d}") for number in range(150_000)]
    keys = [
        key("general.architecture", 8, text("gemma3n")),
        key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, len(tokens)) + b"".join(tokens)),
        key("general.name", 8, text("toy")),
    ]
    data = bytes(number * 7 % 256 for number in range(64 * 1024 * 4))
    path = tmp_path_factory.mktemp("model") / "big_vocab.gguf"
    path.write_bytes(gguf(keys, [("token_embd.weight", (64, 1024), 0, 0)], data))
    return path
