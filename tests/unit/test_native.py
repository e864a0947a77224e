from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coldbench.common.compiler import find_compiler, require_compilers
from coldbench.common.errors import ColdbenchError
from coldbench.measure.native import launcher_program


def test_the_launcher_is_built_once_whoever_asks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(launcher_program, [tmp_path, tmp_path]))
    (path,) = paths
    built = path.stat()
    assert launcher_program(tmp_path) == path
    assert path.stat().st_mtime_ns == built.st_mtime_ns
    assert [p.name for p in path.parent.iterdir()] == ["launcher"]


def test_a_missing_compiler_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ColdbenchError, match=r"no C compiler .*apt-get install gcc"):
        launcher_program(tmp_path)
    monkeypatch.setenv("CC", "gcc -m32")
    with pytest.raises(ColdbenchError, match=r"\$CC is 'gcc -m32'"):
        find_compiler("C")


def test_the_compiler_asked_for_is_the_one_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CC", "CXX"):
        program = tmp_path / f"my-{variable}"
        program.write_text(f"#!/bin/sh\necho {variable} 1.2\necho more\n")
        program.chmod(0o755)
        monkeypatch.setenv(variable, str(program))
    c, cxx = require_compilers()
    assert (c.path, c.version) == (tmp_path / "my-CC", "CC 1.2")
    assert (cxx.path, cxx.version) == (tmp_path / "my-CXX", "CXX 1.2")
