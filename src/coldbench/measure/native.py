"""Build our own C programs once a source and compiler, from the sources in the checkout."""

import platform
import shutil
import subprocess
from pathlib import Path

from filelock import FileLock

from coldbench.common.compiler import environment_program, find_compiler
from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import need_space
from coldbench.common.hashing import folder_key
from coldbench.common.scratch import scratch

SOURCES = Path(__file__).parents[3] / "src" / "native" / "launcher"
_LAST_LINES = 3
_SPACE_BYTES = 8 << 20


def launcher_program(cache: Path) -> Path:
    """Return the launcher's program below `cache`, building it first where it is not there.

    Several processes may ask at once. Raises ColdbenchError where there is no C compiler, where
    the package is not installed from its checkout, and where the build fails.
    """
    compiler = find_compiler("C")
    files = ("CMakeLists.txt", "launcher.c", "marks.c", "marks.h", "watch.c", "watch.h")
    try:
        sources = {name: (SOURCES / name).read_text(encoding="utf-8") for name in files}
    except OSError as error:
        raise ColdbenchError(
            f"{SOURCES}: the launcher's source is not here ({error.strerror}); install coldbench "
            f"from its checkout with `pip install --editable`"
        ) from error
    key = folder_key([sources, compiler.version, platform.machine()])
    program = cache / "native" / key / "launcher"
    if program.exists():
        return program
    program.parent.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(program.parent.with_suffix(".lock")):
        if not program.exists():
            need_space(program.parent, _SPACE_BYTES, "building the launcher")
            _build("launcher", compiler.path, program.parent, cache)
    return program


def _build(target: str, compiler: Path, folder: Path, cache: Path) -> None:
    with scratch(cache, folder.name) as work:
        cmake = environment_program("cmake")
        commands: tuple[list[str | Path], ...] = (
            [
                cmake, "-S", SOURCES, "-B", work, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                f"-DCMAKE_C_COMPILER={compiler}",
                f"-DCMAKE_MAKE_PROGRAM={environment_program('ninja')}",
            ],
            [cmake, "--build", work, "--target", target],
        )  # fmt: skip
        for command in commands:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode:
                last = " | ".join(done.stdout.split("\n")[-_LAST_LINES - 1 :]).strip(" |")
                raise ColdbenchError(
                    f"{SOURCES}: {target} does not build with {compiler} ({last}); check that the "
                    f"compiler and the C library's headers are installed (build-essential)"
                )
        ready = work / "ready"
        ready.mkdir()
        shutil.move(work / target, ready / target)
        ready.replace(folder)
