"""The gather kernel's measure of the device, which is fio's."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from .gather_kernel import EPERM, PAGE, SETUP, Gather, Table, refused


def fake_fio(folder: Path, words: str, status: int = 0) -> dict[str, str]:
    """A program called fio that notes its arguments and prints what fio would."""
    script = folder / "bin" / "fio"
    script.parent.mkdir()
    script.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" >'{folder}/arguments'\ncat <<'END'\n{words}\nEND\n"
        f"exit {status}\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return {"PATH": f"{script.parent}:/usr/bin:/bin"}


def fio_words(reads: int, error: int = 0) -> str:
    read = {"io_bytes": reads * 4096, "iops": 60125.25, "runtime": 1663, "total_ios": reads}
    trim = {"io_bytes": 0, "iops": 0.0, "runtime": 0, "total_ios": 0}
    jobs = [{"jobname": "randread", "error": error, "read": read, "trim": trim}]
    words = json.dumps({"fio version": "fio-3.33", "jobs": jobs}, indent=2)
    return "note: both iodepth >= 1 are ...\n" + words.replace('":', '" :')


def test_fio_measures_the_device_in_the_range_of_the_table(
    gather: Gather, table: Table, indices: np.ndarray, tmp_path: Path
) -> None:
    reads = len(table.pages(indices))
    path = fake_fio(tmp_path, fio_words(reads))
    result = gather.result(table, table.trace(indices), "--strategy", "fio", "--depth", 32, **path)
    assert result["gather_s"] == 1.663
    assert result["ns_per_gather"] == pytest.approx(1.663e9 / reads)
    assert result["device_iops"] == 60125.25
    assert (result["depth"], result["pages_unique"]) == (32, reads)
    assert result["requested_bytes"] == reads * 4096
    assert result["fio_version"] == "fio-3.33"
    assert "checksum" not in result
    arguments = (tmp_path / "arguments").read_text(encoding="utf-8").split("\n")
    size = table.path.stat().st_size
    for one in (
        f"--filename={table.path}", "--rw=randread", "--bs=4096", "--direct=1", "--readonly",
        "--iodepth=32", f"--offset={PAGE}", f"--size={(size // PAGE - 1) * PAGE}",
        f"--number_ios={reads}", "--randseed=1", "--ioengine=io_uring",
    ):  # fmt: skip
        assert one in arguments


def test_fio_without_io_uring_uses_libaio(
    gather: Gather, table: Table, tmp_path: Path, shim: Path
) -> None:
    environment = fake_fio(tmp_path, fio_words(1)) | refused(SETUP, EPERM)
    environment["LD_PRELOAD"] = str(shim)
    gather.result(table, table.trace([0]), "--strategy", "fio", **environment)
    assert "--ioengine=libaio" in (tmp_path / "arguments").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(fio_words(5), 1, "fio failed (exit status 1)"), (fio_words(4), 0, "fio made 4 of 5 reads"),
     (fio_words(5, error=22), 0, "fio: error 22"),
     ("hello", 0, 'fio\'s output has no "fio version"')],
)  # fmt: skip
def test_a_fio_that_fails_is_a_failure(
    gather: Gather, table: Table, tmp_path: Path, words: str, status: int, said: str
) -> None:
    rows = [0, 100, 200, 300]
    assert len(table.pages(rows)) == 5
    environment = fake_fio(tmp_path, words, status)
    done = gather.run(table, table.trace(rows), "--strategy", "fio", **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_a_machine_without_fio_is_told_of_the_package(
    gather: Gather, table: Table, tmp_path: Path
) -> None:
    refusal = gather.refusal(
        table, table.trace([0]), "--strategy", "fio", PATH=str(tmp_path / "empty")
    )
    assert refusal["unsupported"].endswith("install the package fio")


def test_the_real_fio_or_its_absence(gather: Gather, table: Table, indices: np.ndarray) -> None:
    trace = table.trace(indices)
    if shutil.which("fio") is None:
        assert "fio" in gather.refusal(table, trace, "--strategy", "fio")["unsupported"]
        return
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    result = gather.result(table, trace, "--strategy", "fio", **libraries)
    reads = len(table.pages(indices))
    assert result["requested_bytes"] == reads * 4096
    assert result["device_iops"] == pytest.approx(1e9 / result["ns_per_gather"], rel=0.2)
