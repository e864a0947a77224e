"""Engine builds: source + patches + cmake flags -> programs with known content.

A build lies in builds/<key>/ of the cache (bin/, record.json, build.log), where the key covers all
that decides its programs, and has a fixed length, so that all programs have equally long paths.
Builds that differ only in content (patches, an edited folder) share a work tree and its objects:
see `tree`.
"""

import errno
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from coldbench.common.compiler import Compiler, require_compilers
from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.common.folders import expanded, need_space
from coldbench.common.hashing import folder_key
from coldbench.common.locks import machine
from coldbench.sources.binaries import ready_build
from coldbench.sources.built import FORMAT, check_build, describe_files, present, publishing
from coldbench.sources.compile import (
    Job,
    Products,
    compile_targets,
    deciding_environment,
    disk_full,
    tool_versions,
)
from coldbench.sources.content import checkout_commit, folder_entries, sdist_entries
from coldbench.sources.pins import Stack, locked, stack
from coldbench.sources.pypi import download_sdist
from coldbench.sources.stated import labelled
from coldbench.sources.tree import Patch, Tree
from coldbench.study.builds import BinariesSource, Build, FolderSource, GitSource, SdistSource
from coldbench.study.lock import Pins as LockEntry

__all__ = ["check_build", "prepare_build"]

CPUINFO = Path("/proc/cpuinfo")
_SPACE_PER_SDIST_BYTE = 8
_OFF = {"OFF", "0", "NO", "N", "FALSE"}


def prepare_build(
    name: str, spec: Build, cache: Path, entry: LockEntry | None = None
) -> dict[str, Any]:
    """Return the record of a build, made now or found in the cache.

    `entry` is the build's place in the study's lock file; without it a branch means what it is
    now. `spec` is complete (`like` merged in; paths absolute or relative to the current folder).
    The record is plain data: source, base_tree, patches with the tree hash after each, tree, cmake,
    unused_cmake (flags that the source does not know), environment (the caller's variables that
    decide what compilers make), targets, compiler, cpu, tools, seconds (of configuring and
    compiling, when it was made), ccache counts, programs and libraries (path, sha256), content
    (one hash over all of them), log, stated (commit and number that the programs print) and notes.
    Raises ColdbenchError naming the build, what failed and the log.
    """
    try:
        if entry is not None:
            spec = locked(name, spec, entry, cache)
        if isinstance(spec.source, BinariesSource):
            return labelled(name, ready_build(name, spec.source, cache))
        if spec.source is None:
            raise ColdbenchError(f"build {name}: has no source")
        return labelled(name, _compiled_build(name, spec, spec.source, cache))
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise disk_full(name, cache) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}:
            raise ColdbenchError(
                f"build {name}: {error.filename or cache}: {error.strerror}; set COLDBENCH_CACHE "
                "to a folder that you can write"
            ) from error
        raise


# --- compiled builds ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recipe:
    """All that decides a compiled build's programs but the source's content."""

    cmake: dict[str, str]
    targets: tuple[str, ...]
    patches: tuple[Patch, ...]
    compilers: tuple[Compiler, Compiler]
    environment: dict[str, str]
    cpu: dict[str, Any]

    @property
    def compiler(self) -> dict[str, str]:
        return {
            language: f"{one.version} ({one.path})"
            for language, one in zip(("c", "c++"), self.compilers, strict=True)
        }

    def family(self, source: dict[str, Any]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "source": source,
            "cmake": self.cmake,
            "environment": self.environment,
            "compiler": self.compiler,
            "cpu": self.cpu,
            "tools": tool_versions()["cmake"],
        }

    def key(self, source: dict[str, Any]) -> str:
        patches = [patch.sha256 for patch in self.patches]
        targets = sorted(self.targets)
        return folder_key([self.family(source), patches, targets])


def _compiled_build(
    name: str, spec: Build, source: SdistSource | GitSource | FolderSource, cache: Path
) -> dict[str, Any]:
    if not spec.targets:
        raise ColdbenchError(f"build {name}: names no targets; list the programs to build")
    cmake = dict(spec.cmake or {})
    recipe = _Recipe(
        cmake=cmake,
        targets=spec.targets,
        patches=_read_patches(name, spec.patches or ()),
        compilers=require_compilers(),
        environment=deciding_environment(),
        cpu=_cpu(cmake, deciding_environment()),
    )
    match source:
        case SdistSource():
            family = {"package": source.pypi.partition("==")[0], "subfolder": source.subfolder}
            facts = source.model_dump()
            key = recipe.key(_identity(facts))
        case GitSource():
            merged = _stack(name, source, spec, cache)
            facts = merged.facts
            family = {"git": facts["git"]}
            # The content decides, not how it came to be.
            key = recipe.key({"git_tree": merged.tree})
        case FolderSource():
            family = {"folder": os.path.realpath(expanded(source.folder))}
    if not isinstance(source, FolderSource) and (found := present(cache, key, facts)):
        return found
    trees = cache / "trees"
    folder = trees / folder_key(recipe.family(family))
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(trees / f".{folder.name}.lock"), machine(alone=False, purpose=f"build {name}"):
        tree = Tree(folder)
        match source:
            case SdistSource():
                base = tree.known(source.sha256) or _import_sdist(tree, source, cache)
            case GitSource():
                base = tree.known(merged.name) or _import_stack(name, tree, merged)
            case FolderSource():
                base, facts = _import_folder(name, tree, Path(family["folder"]))
                key = recipe.key(_identity(facts))
        if found := present(cache, key, facts):  # by another job, while this one waited
            return found
        return _compile(name, recipe, tree, folder, base, facts, key, cache)


def _identity(facts: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only labels a source: a commit does not change its content."""
    return {key: value for key, value in facts.items() if key not in {"commit", "modified"}}


def _import_sdist(tree: Tree, source: SdistSource, cache: Path) -> str:
    archive = download_sdist(source.pypi, source.sha256, cache)
    need = _SPACE_PER_SDIST_BYTE * archive.stat().st_size
    need_space(cache, need, f"building {source.pypi}")
    return tree.add(source.sha256, sdist_entries(archive, source.subfolder))


def _stack(name: str, source: GitSource, spec: Build, cache: Path) -> Stack:
    try:
        return stack(source.git, spec.pins or (), cache)
    except ColdbenchError as error:
        raise ColdbenchError(f"build {name}: {error}") from None


def _import_stack(name: str, tree: Tree, merged: Stack) -> str:
    try:
        merged.content.check()
        if (lender := merged.content.single) is not None and "\n" not in str(lender.folder):
            return tree.borrow(merged.name, merged.tree, lender.folder)
        return tree.add(merged.name, merged.content.entries())
    except ColdbenchError as error:
        raise ColdbenchError(f"build {name}: {merged.facts['git']}: {error}") from None


def _import_folder(name: str, tree: Tree, folder: Path) -> tuple[str, dict[str, Any]]:
    if not folder.is_dir():
        raise ColdbenchError(f"build {name}: source folder {folder} does not exist")
    base = tree.add("folder", folder_entries(folder))
    commit, commit_tree = checkout_commit(folder) or (None, None)
    facts: dict[str, Any] = {"folder": str(folder), "tree": base, "commit": commit}
    return base, facts | {"modified": None if commit is None else base != commit_tree}


def _compile(
    name: str,
    recipe: _Recipe,
    tree: Tree,
    folder: Path,
    base: str,
    facts: dict[str, Any],
    key: str,
    cache: Path,
) -> dict[str, Any]:
    label = str(facts.get("pypi") or facts.get("git") or facts["folder"])
    commit = facts["commit"] or f"tree {base}"
    after = tree.patched(base, recipe.patches, build=name, source=f"{label} ({commit})")
    final = after[-1] if after else base
    tree.check_out(final)
    log_file = cache / "builds" / f"{key}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.write_text(f"build {name} of {label} ({commit}), tree {final}\n")
    products = compile_targets(
        Job(
            build=name,
            tree=folder,
            cmake=recipe.cmake,
            targets=recipe.targets,
            compilers=recipe.compilers,
            ccache=cache / "ccache",
            namespace=folder_key([recipe.cpu, recipe.compiler]),
            log_file=log_file,
        )
    )
    patches = [
        {"path": patch.name, "sha256": patch.sha256, "tree": tree_hash}
        for patch, tree_hash in zip(recipe.patches, after, strict=True)
    ]
    record = {
        "source": facts,
        "base_tree": base,
        "patches": patches,
        "tree": final,
        "cmake": recipe.cmake,
        "unused_cmake": products.unused,
        "environment": recipe.environment,
        "targets": list(recipe.targets),
        "compiler": recipe.compiler,
        "cpu": recipe.cpu,
        "tools": tool_versions(),
        "seconds": products.seconds,
        "ccache": products.ccache,
    }
    with publishing(cache, key) as (staging, final_folder):
        _copy_products(products, staging / "bin")
        log_file.replace(staging / "build.log")
        record |= describe_files(staging / "bin", final_folder / "bin", set(products.programs))
        record["log"] = str(final_folder / "build.log")
        write_json(staging / "record.json", record)
    return record


def _read_patches(name: str, paths: tuple[str, ...]) -> tuple[Patch, ...]:
    patches = []
    for number, path in enumerate(paths, start=1):
        try:
            patches.append(Patch(path, expanded(path).read_bytes()))
        except OSError as error:
            raise ColdbenchError(
                f"build {name}: patch {number} ({path}) cannot be read: {error.strerror}"
            ) from error
    return tuple(patches)


def _cpu(cmake: dict[str, str], environment: dict[str, str]) -> dict[str, Any]:
    """Describe the CPU that a build may be made for: /proc/cpuinfo of x86 and of Arm.

    A flag *_NATIVE set to OFF says that it is not, unless compiler flags ask for the native one
    (-march=native); then only the architecture counts.
    """
    facts: dict[str, Any] = {"architecture": platform.machine()}
    portable = any(
        key.partition(":")[0].endswith("_NATIVE") and value.upper() in _OFF
        for key, value in cmake.items()
    )
    native = not portable or any(
        "FLAGS" in key and "native" in value for key, value in (cmake | environment).items()
    )
    if native:
        text = CPUINFO.read_text()
        for fact, pattern in {
            "model": r"model name|cpu|CPU (?:implementer|architecture|variant|part)",
            "features": r"flags|Features",
        }.items():
            found = re.findall(rf"^((?:{pattern})\s*:.*)$", text, re.MULTILINE)
            values = dict.fromkeys(line.partition(":")[2].strip() for line in found)
            facts[fact] = "; ".join(values)
    return facts | {"native": native}


def _copy_products(products: Products, target: Path) -> None:
    target.mkdir()
    for path in products.programs.values():
        shutil.copy2(path, target / path.name)
    for path in products.libraries:
        # The loader asks for a library by the name of a link beside it.
        real = path.resolve()
        for sibling in path.parent.iterdir():
            if sibling.resolve() == real and not (target / sibling.name).exists():
                shutil.copy2(sibling, target / sibling.name)
