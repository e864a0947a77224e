"""Configuring and compiling a CMake project with the environment's cmake, ninja and ccache."""

import difflib
import functools
import json
import logging
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coldbench.common.children import die_with_parent
from coldbench.common.compiler import Compiler, environment_program
from coldbench.common.errors import ColdbenchError
from coldbench.sources.content import clean_environment

log = logging.getLogger(__name__)

_DECIDING = re.compile(
    r"CMAKE_(?!GENERATOR|BUILD_PARALLEL_LEVEL).*|(C|CXX|CPP|LD|ASM|CUDA|HIP)FLAGS|CUDA(CXX|_PATH)"
    r"|(C|LIBRARY_|C_INCLUDE_|CPLUS_INCLUDE_)PATH|SOURCE_DATE_EPOCH"
)
_PROGRESS_EVERY_S = 20.0
_FAULT = re.compile(
    r"\b(?:fatal )?error:|^CMake Error|undefined reference|^Killed\b|: Killed\b|terminated program"
    r"|internal compiler error|\bSegmentation fault\b"
)
_FULL = "No space left on device"
_LITTLE_BYTES = 2**20


@dataclass(frozen=True)
class Job:
    """What to compile: `tree` holds src/, and gets build/; the log is appended to `log_file`."""

    build: str
    tree: Path
    cmake: dict[str, str]
    targets: tuple[str, ...]
    compilers: tuple[Compiler, Compiler]
    ccache: Path
    namespace: str
    log_file: Path


@dataclass(frozen=True)
class Products:
    """The targets' programs by name, the shared libraries they need, and how it went."""

    programs: dict[str, Path]
    libraries: list[Path]
    unused: list[str]
    seconds: float
    ccache: dict[str, int]


def deciding_environment() -> dict[str, str]:
    """Return the caller's variables that compilers and CMake let decide what they make."""
    return {key: value for key, value in sorted(os.environ.items()) if _DECIDING.fullmatch(key)}


def disk_full(build: str, folder: Path) -> ColdbenchError:
    """Return the error that says so."""
    return ColdbenchError(
        f"build {build}: the disk is full ({folder}); free some space or set COLDBENCH_CACHE to "
        "another disk, then run again"
    )


@functools.cache
def tool_versions() -> dict[str, str]:
    """Return the versions of cmake, ninja and ccache."""
    versions = {}
    for name in ("cmake", "ninja", "ccache"):
        shown = subprocess.run(
            [environment_program(name), "--version"], capture_output=True, text=True, check=True
        )
        versions[name] = shown.stdout.split("\n")[0].split()[-1]
    return versions


def compile_targets(job: Job) -> Products:
    """Configure and build; objects of an earlier build in the same tree are used where they fit.

    Raises ColdbenchError naming the build, the first error and the log.
    """
    build_folder = job.tree / "build"
    # Nothing of an earlier configuration may decide this one; the objects are kept.
    (build_folder / "CMakeCache.txt").unlink(missing_ok=True)
    query = build_folder / ".cmake" / "api" / "v1" / "query" / "codemodel-v2"
    query.parent.mkdir(parents=True, exist_ok=True)
    query.touch()
    statistics = job.tree / "ccache.log"
    statistics.unlink(missing_ok=True)
    begun = time.monotonic()
    log.info("build %s: configuring (log: %s)", job.build, job.log_file)
    _run(job, _configure_command(job, build_folder), statistics)
    unused = _unused(job.log_file.read_text(encoding="utf-8"))
    if unused:
        log.warning("build %s: the source knows no cmake flag %s", job.build, ", ".join(unused))
    programs, libraries = _artifacts(job, build_folder)
    jobs = str(len(os.sched_getaffinity(0)))
    log.info("build %s: compiling %s", job.build, ", ".join(job.targets))
    command = [str(environment_program("ninja")), "-C", str(build_folder), "-j", jobs, *job.targets]
    _run(job, command, statistics)
    seconds = time.monotonic() - begun
    log.info("build %s: compiled in %.0f s", job.build, seconds)
    return Products(programs, libraries, unused, round(seconds, 2), _hits(statistics))


def _configure_command(job: Job, build_folder: Path) -> list[str]:
    # Names of files end up in programs (assertions): the same everywhere. An include of our own
    # leaves CMAKE_C_FLAGS and its like to the study and to the user's environment.
    include = job.tree / "prefix.cmake"
    maps = [f"-ffile-prefix-map={job.tree / 'src'}=.", f"-ffile-prefix-map={build_folder}=build"]
    lines = [f"add_compile_options([=[$<$<COMPILE_LANGUAGE:C,CXX>:{one}>]=])\n" for one in maps]
    include.write_text("".join(lines))
    c, cxx = job.compilers
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": str(environment_program("ninja")),
        "CMAKE_C_COMPILER": str(c.path),
        "CMAKE_CXX_COMPILER": str(cxx.path),
        "CMAKE_C_COMPILER_LAUNCHER": str(environment_program("ccache")),
        "CMAKE_CXX_COMPILER_LAUNCHER": str(environment_program("ccache")),
        "CMAKE_EXPORT_COMPILE_COMMANDS": "OFF",
        "CMAKE_PROJECT_TOP_LEVEL_INCLUDES": str(include),
        # Programs must find the libraries beside them, not the work tree's: it moves on.
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_RPATH": "$ORIGIN",
    } | job.cmake
    command = [str(environment_program("cmake")), "-G", "Ninja", "-S", str(job.tree / "src")]
    command += ["-B", str(build_folder)]
    return command + [f"-D{key}={value}" for key, value in settings.items()]


def _environment(job: Job, statistics: Path) -> dict[str, str]:
    kept = {
        key: value
        for key, value in clean_environment().items()
        if not key.startswith(("CCACHE_", "CMAKE_GENERATOR"))
    }
    return kept | {
        # A project that asks git for its commit must not be answered by a repository around us.
        "GIT_CEILING_DIRECTORIES": str(job.tree),
        "CCACHE_CONFIGPATH": os.devnull,
        # ccache expands variables in its settings.
        "CCACHE_DIR": str(job.ccache).replace("$", "$$"),
        "CCACHE_BASEDIR": str(job.tree).replace("$", "$$"),
        "CCACHE_NOHASHDIR": "1",
        # Objects compiled for the native CPU must not come back on another one.
        "CCACHE_NAMESPACE": job.namespace,
        "CCACHE_STATSLOG": str(statistics).replace("$", "$$"),
        "NINJA_STATUS": "[%f/%t] ",
    }


def _run(job: Job, command: list[str], statistics: Path) -> None:
    first: str | None = None
    full = False
    spoken = time.monotonic()
    with job.log_file.open("a", encoding="utf-8") as out:
        print("$", *command, file=out, flush=True)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=job.tree,
            env=_environment(job, statistics),
            preexec_fn=die_with_parent(),
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                full = full or _FULL in line
                if first is None and _FAULT.search(line):
                    first = line.strip() + _continued(line, process.stdout, out)
                step = re.match(r"\[(\d+/\d+)\]", line)
                if step and time.monotonic() - spoken > _PROGRESS_EVERY_S:
                    spoken = time.monotonic()
                    log.info("build %s: %s", job.build, step[1])
            status = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    # Not every tool says so: some only fail.
    if full or (status != 0 and shutil.disk_usage(job.tree).free < _LITTLE_BYTES):
        raise disk_full(job.build, job.tree)
    if status != 0:
        reason = first or f"{Path(command[0]).name} ended with status {status}"
        raise ColdbenchError(f"build {job.build}: {reason} (log: {job.log_file})")


def _continued(line: str, stream: IO[str], out: IO[str]) -> str:
    """Return the message of a CMake error, which stands in the line after it."""
    if not line.startswith("CMake Error"):
        return ""
    following = next(stream, "")
    out.write(following)
    return f" {following.strip()}" if following.strip() else ""


def _artifacts(job: Job, build_folder: Path) -> tuple[dict[str, Path], list[Path]]:
    """Read CMake's file API (cmake-file-api(7)): the targets' programs and shared libraries."""
    reply = build_folder / ".cmake" / "api" / "v1" / "reply"
    model = json.loads(max(reply.glob("codemodel-v2-*.json")).read_text())
    listed = model["configurations"][0]["targets"]
    targets = {one["id"]: json.loads((reply / one["jsonFile"]).read_text()) for one in listed}
    executables = {
        target["name"]: key for key, target in targets.items() if target["type"] == "EXECUTABLE"
    }
    programs: dict[str, Path] = {}
    needed: set[str] = set()
    for name in job.targets:
        if name not in executables:
            near = difflib.get_close_matches(name, executables, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ColdbenchError(
                f"build {job.build}: the source has no program target {name} under these cmake "
                f"flags{hint}"
            )
        key = executables[name]
        path = build_folder / targets[key]["artifacts"][0]["path"]
        programs[path.name] = path
        _depend(targets, key, needed)
    libraries = [
        build_folder / artifact["path"]
        for key in sorted(needed)
        if targets[key]["type"] in {"SHARED_LIBRARY", "MODULE_LIBRARY"}
        for artifact in targets[key].get("artifacts", [])
    ]
    return programs, libraries


def _depend(targets: dict[str, Any], key: str, found: set[str]) -> None:
    for dependency in targets[key].get("dependencies", []):
        if dependency["id"] not in found:
            found.add(dependency["id"])
            _depend(targets, dependency["id"], found)


def _unused(configure_log: str) -> list[str]:
    """Return the flags that CMake says no CMakeLists.txt read."""
    _, _, after = configure_log.partition("Manually-specified variables were not used")
    return re.findall(r"^    (\S+)$", after.partition("\n-- ")[0], re.MULTILINE)


def _hits(statistics: Path) -> dict[str, int]:
    """Count what ccache found of this build's compilations."""
    lines = statistics.read_text().split("\n") if statistics.exists() else []
    hits = sum(line in {"direct_cache_hit", "preprocessed_cache_hit"} for line in lines)
    return {"hits": hits, "misses": lines.count("cache_miss")}
