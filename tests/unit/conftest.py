"""What several of the unit tests need."""

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coldbench.common.compiler import environment_program, find_compiler
from coldbench.common.errors import ColdbenchError
from coldbench.measure.cgroup import Group, memory_controller, own_group
from coldbench.measure.launcher import Launched, environment_for, launch
from coldbench.measure.native import SOURCES, launcher_program

from .gather_kernel import Gather, Table
from .gguf_files import gguf, key, text
from .stream_kernel import LAYERS, TOKENS, Weights, sums, write_feed
from .toy_repository import Repository, toy_repository

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


@pytest.fixture(scope="session")
def gather_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("gather-build")
    cmake = environment_program("cmake")
    ninja = f"-DCMAKE_MAKE_PROGRAM={environment_program('ninja')}"
    flags = "-DCMAKE_C_FLAGS=-Werror"
    subprocess.run(
        [cmake, "-S", SOURCES.parent / "kernels", "-B", build, "-G", "Ninja", ninja, flags],
        check=True,
    )
    subprocess.run([cmake, "--build", build, "--target", "gather"], check=True)
    return build / "gather"


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library by which the kernel refuses calls; see tests/native/preload/refuse.c."""
    library = tmp_path_factory.mktemp("shim") / "refuse.so"
    source = Path(__file__).parents[1] / "native" / "preload" / "refuse.c"
    compiler = find_compiler("C").path
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = Table(tmp_path_factory.mktemp("table") / "the table é.gguf")
    size = table.offset + table.rows * table.row_bytes
    table.path.write_bytes(np.random.default_rng(5).bytes(size))
    return table


@pytest.fixture
def indices(table: Table) -> np.ndarray:
    """Gathers with repeats and neighbours, the first and the last row among them."""
    some = np.random.default_rng(6).integers(0, table.rows, 700)
    return np.concatenate([some, [0, table.rows - 1], some[:20], np.arange(4000, 4200)])


@pytest.fixture
def gather(gather_program: Path, tmp_path: Path) -> Gather:
    return Gather(gather_program, tmp_path)


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("native")
    for command in (
        f"cmake -S {SOURCES.parent}/kernels -B {build} -G Ninja -DCMAKE_BUILD_TYPE=Release",
        f"cmake --build {build} --target stream",
    ):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stdout
    return build / "stream"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Six layers of about 12 MiB at odd offsets.

    A layer has a large range, a short one that shares a page with it, and one in another shard;
    the last layer's bytes are the last of the file, whose size is no multiple of a page.
    """
    folder = tmp_path_factory.mktemp("weights")
    first, second = folder / "a model.gguf", folder / "shard 2.gguf"
    random = np.random.default_rng(5)
    ranges: list[tuple[int, int, int, Path]] = []
    at = 12_345
    for layer in range(LAYERS):
        large = 11 * MIB + 1000 * layer + 7
        ranges.append((layer, at, large, first))
        ranges.append((layer, at + large + 5, 100, first))
        ranges.append((layer, 777 + layer * MIB, MIB, second))
        at += large + 105
    first.write_bytes(random.bytes(at))
    second.write_bytes(random.bytes(777 + LAYERS * MIB))
    feed = folder / "layers"
    write_feed(feed, tuple(ranges))
    return Weights(first, feed, tuple(ranges))


@pytest.fixture(scope="session")
def expected(weights: Weights) -> list[str]:
    return sums(weights, TOKENS, 1)


@pytest.fixture
def toy(tmp_path: Path) -> Repository:
    """A repository whose tag v1 pins are merged onto."""
    repository = toy_repository(tmp_path / "toy")
    repository.git("tag", "v1")
    return repository


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
