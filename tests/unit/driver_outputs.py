"""What the driver tests share: recorded outputs, workloads, and stub engines that really run."""

import subprocess
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from coldbench.drivers.base import Output
from coldbench.records import Exit
from coldbench.study.workloads import Workload

DATA = Path(__file__).parent.parent / "data" / "bench"
REAL = DATA / "real"
OK = Exit(ended="exit", code=0)


def workload(driver: str, *args: str, **keys: Any) -> Any:
    return TypeAdapter(Workload).validate_python({"driver": driver, "args": args, **keys})


def output(stdout: bytes | str | Path = b"", stderr: str | Path = "", exit: Exit = OK) -> Output:  # noqa: A002
    if isinstance(stdout, Path):
        stdout = stdout.read_bytes()
    if isinstance(stderr, Path):
        stderr = stderr.read_text(encoding="utf-8")
    return Output(exit, stdout.encode() if isinstance(stdout, str) else stdout, stderr)


def stub(folder: Path, script: str) -> Output:
    """Run a shell script that stands in for an engine and return what it left."""
    program = folder / "engine.sh"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    done = subprocess.run(
        [program], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60
    )
    if done.returncode < 0:
        end = Exit(ended="signal", signal=-done.returncode)
    else:
        end = Exit(ended="exit", code=done.returncode)
    return Output(end, done.stdout, done.stderr.decode())
