"""The one prerequisite that is not in the environment: a C and a C++ compiler."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coldbench.common.errors import ColdbenchError

Language = Literal["C", "C++"]

_VARIABLE: dict[Language, str] = {"C": "CC", "C++": "CXX"}
_USUAL: dict[Language, tuple[str, ...]] = {
    "C": ("cc", "gcc", "clang"),
    "C++": ("c++", "g++", "clang++"),
}
_PACKAGE: dict[Language, str] = {"C": "gcc", "C++": "g++"}


@dataclass(frozen=True)
class Compiler:
    """A compiler: its absolute path, and the first line of its `--version`."""

    path: Path
    version: str


def find_compiler(language: Language) -> Compiler:
    """Return the compiler named by $CC or $CXX, else the first usual name that is on the PATH.

    Raises ColdbenchError where there is none, naming the Debian package, and where the variable
    names anything but one program.
    """
    variable = _VARIABLE[language]
    named = os.environ.get(variable)
    for name in (named,) if named else _USUAL[language]:
        if found := shutil.which(name):
            return Compiler(Path(found).absolute(), _version(found))
    if named:
        raise ColdbenchError(
            f"${variable} is {named!r}, which is not a program on the PATH; "
            f"set it to one compiler without arguments, or unset it"
        )
    raise ColdbenchError(
        f"no {language} compiler ({', '.join(_USUAL[language])}) on the PATH; install one "
        f"(Debian, Ubuntu: apt-get install {_PACKAGE[language]}, or build-essential for both)"
    )


def require_compilers() -> tuple[Compiler, Compiler]:
    """Return the C and the C++ compiler. Raises ColdbenchError as `find_compiler` does."""
    return find_compiler("C"), find_compiler("C++")


def environment_program(name: str) -> Path:
    """Return a program of this Python environment (`cmake`, `ninja`, `ccache`), else of the PATH.

    The environment's own stands first, since it is the one that is pinned. Raises ColdbenchError
    where there is neither.
    """
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return beside
    if found := shutil.which(name):
        return Path(found).absolute()
    raise ColdbenchError(f"no {name} in this Python environment; set it up again (make setup)")


def _version(program: str) -> str:
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ColdbenchError(
            f"{program}: is no working compiler ({error}); install another or set $CC and $CXX"
        ) from error
    return (answer.stdout.splitlines() or [""])[0]
