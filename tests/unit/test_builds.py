"""Builds of toy projects, with the environment's real cmake, ninja and ccache."""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources import builds
from coldbench.sources.builds import check_build, prepare_build
from coldbench.study.builds import Build, FolderSource, SdistSource

CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.14)
project(toy C CXX)
option(LOUD "print more" OFF)
add_library(part part.c)
add_executable(toy main.cpp)
target_link_libraries(toy part)
"""
PART = """\
#include <assert.h>

int part(int x) {
    assert(x > 0);
    return x;
}
"""
MAIN = """\
#include <cstdio>
extern "C" int part(int);
int main() {
    std::printf("%d\\n", part(1));
}
"""
TEN = b"""\
--- a/part.c
+++ b/part.c
@@ -4,3 +4,3 @@
     assert(x > 0);
-    return x;
+    return 10 * x;
 }
"""
MAIN_PATCH = """\
--- a/main.cpp
+++ b/main.cpp
@@ -1,2 +1,3 @@
 #include <cstdio>
+
 extern "C" int part(int);
"""
HUNDRED = TEN.replace(b"10 * x", b"100 * x").replace(b"return x;", b"return 10 * x;")
FLAGS = {"LOUD": "OFF"}


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed here: do not wait for whoever measures on this machine."""
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "machine.lock"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(CMAKE_LISTS)
    (folder / "part.c").write_text(PART)
    (folder / "main.cpp").write_text(MAIN)
    return folder


@pytest.fixture
def patches(tmp_path: Path) -> tuple[str, str]:
    paths = tmp_path / "0001-ten.patch", tmp_path / "0002-hundred.patch"
    paths[0].write_bytes(TEN)
    paths[1].write_bytes(HUNDRED)
    return str(paths[0]), str(paths[1])


def toy(source: Path, *patches: str, **flags: str) -> Build:
    return Build(
        source=FolderSource(folder=str(source)),
        patches=patches,
        cmake=FLAGS | flags,
        targets=("toy",),
    )


def output(record: dict) -> str:
    program = record["programs"]["toy"]["path"]
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def compiled(record: dict) -> list[str]:
    lines = Path(record["log"]).read_text().splitlines()
    return [line.rsplit("/", 1)[-1] for line in lines if "] Building " in line]


def test_a_build_has_a_full_record(source: Path, tmp_path: Path, patches: tuple[str, str]) -> None:
    record = prepare_build("b", toy(source, patches[0]), tmp_path / "cache")
    assert output(record) == "10\n"
    program = Path(record["programs"]["toy"]["path"])
    assert program.parent.parent.parent == tmp_path / "cache" / "builds"
    assert record["programs"]["toy"]["sha256"] == hashlib.sha256(program.read_bytes()).hexdigest()
    (patch,) = record["patches"]
    assert patch["sha256"] == hashlib.sha256(TEN).hexdigest()
    assert patch["tree"] == record["tree"] != record["base_tree"]
    assert record["cmake"] == FLAGS
    assert set(record["compiler"]) == {"c", "c++"}
    assert set(record["tools"]) == {"cmake", "ninja", "ccache"}
    assert record["cpu"]["native"] is True
    assert record["ccache"] == {"hits": 0, "misses": 2}
    check_build(record)


def test_a_build_in_the_cache_is_not_made_again_unless_it_was_changed(
    source: Path, tmp_path: Path
) -> None:
    first = prepare_build("b", toy(source), tmp_path / "cache")
    program = Path(first["programs"]["toy"]["path"])
    made = program.stat().st_mtime_ns, program.stat().st_ino
    assert prepare_build("other", toy(source), tmp_path / "cache") == first
    assert (program.stat().st_mtime_ns, program.stat().st_ino) == made
    program.write_bytes(b"changed")
    with pytest.raises(ColdbenchError, match="the cache was changed"):
        check_build(first)
    assert prepare_build("b", toy(source), tmp_path / "cache")["content"] == first["content"]
    check_build(first)


def test_a_second_build_compiles_only_what_its_patch_touches(
    source: Path, tmp_path: Path, patches: tuple[str, str]
) -> None:
    released = prepare_build("released", toy(source), tmp_path / "cache")
    patched = prepare_build("patched", toy(source, *patches), tmp_path / "cache")
    assert sorted(compiled(released)) == ["main.cpp.o", "part.c.o"]
    assert compiled(patched) == ["part.c.o"]
    assert (output(released), output(patched)) == ("1\n", "100\n")
    lengths = {len(one["programs"]["toy"]["path"]) for one in (released, patched)}
    assert len(lengths) == 1
    (source / "main.cpp").write_text(MAIN.replace("%d", "edited %d"))
    edited = prepare_build("edited", toy(source), tmp_path / "cache")
    assert output(edited) == "edited 1\n"
    assert compiled(edited) == ["part.c.o", "main.cpp.o"]
    assert edited["ccache"] == {"hits": 1, "misses": 1}


@pytest.mark.parametrize("shared", ["OFF", "ON"])
def test_two_caches_give_the_same_bytes(
    source: Path, tmp_path: Path, patches: tuple[str, str], shared: str
) -> None:
    here, there = tmp_path / "cache", tmp_path / "a longer" / "it's $another cache"
    prepare_build("released", toy(source, BUILD_SHARED_LIBS=shared), here)
    patched = toy(source, patches[0], BUILD_SHARED_LIBS=shared)
    ours = prepare_build("patched", patched, here)
    theirs = prepare_build("patched", patched, there)
    for kind in ("programs", "libraries"):
        hashes = [
            {name: file["sha256"] for name, file in one[kind].items()} for one in (ours, theirs)
        ]
        assert hashes[0] == hashes[1]
        for file in ours[kind].values():
            assert str(tmp_path).encode() not in Path(file["path"]).read_bytes()
    assert list(ours["libraries"]) == (["libpart.so"] if shared == "ON" else [])


def test_a_failing_patch_is_named_and_mended_by_mending_the_file(
    source: Path, tmp_path: Path, patches: tuple[str, str]
) -> None:
    third = tmp_path / "0003-main.patch"
    third.write_text(MAIN_PATCH)
    second = Path(patches[1])
    second.write_bytes(HUNDRED.replace(b"10 * x", b"11 * x"))
    stack = toy(source, *patches, str(third))
    with pytest.raises(ColdbenchError) as caught:
        prepare_build("fast", stack, tmp_path / "cache")
    message = str(caught.value)
    assert message.startswith(f"build fast: patch 2 ({second}) does not apply to {source} (tree ")
    assert "part.c: patch does not apply" in message
    assert not list((tmp_path / "cache").rglob("toy"))
    assert output(prepare_build("other", toy(source), tmp_path / "cache")) == "1\n"
    second.write_bytes(HUNDRED)
    assert output(prepare_build("fast", stack, tmp_path / "cache")) == "100\n"
    with pytest.raises(ColdbenchError, match=r"patch 1 \(.*0002-hundred.patch\) does not apply"):
        prepare_build("wrong-order", toy(source, *reversed(patches)), tmp_path / "cache")


def test_a_source_inside_another_repository_is_patched(
    tmp_path: Path, source: Path, patches: tuple[str, str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    Path(patches[0]).write_bytes(b"diff --git a/part.c b/part.c\n" + TEN)
    assert output(prepare_build("b", toy(source, patches[0]), tmp_path / "cache")) == "10\n"


def test_a_missing_patch_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ColdbenchError, match=r"build b: patch 1 \(no.patch\) cannot be read"):
        prepare_build("b", toy(source, "no.patch"), tmp_path / "cache")


def test_an_edited_default_of_an_option_is_not_hidden_by_an_earlier_build(
    source: Path, tmp_path: Path
) -> None:
    lists = CMAKE_LISTS + (
        "option(QUIET quiet OFF)\ntarget_compile_definitions(toy PRIVATE QUIET=$<BOOL:${QUIET}>)\n"
    )
    (source / "main.cpp").write_text(MAIN.replace("part(1)", "QUIET"))
    for default, printed in (("OFF", "0\n"), ("ON", "1\n"), ("OFF", "0\n")):
        (source / "CMakeLists.txt").write_text(lists.replace("quiet OFF", f"quiet {default}"))
        assert output(prepare_build("b", toy(source), tmp_path / "cache")) == printed


def test_shared_libraries_go_with_their_program(
    source: Path, tmp_path: Path, patches: tuple[str, str]
) -> None:
    (source / "CMakeLists.txt").write_text(
        CMAKE_LISTS + "set_target_properties(part PROPERTIES VERSION 1.2 SOVERSION 1)\n"
    )
    cache = tmp_path / "cache"
    first = prepare_build("first", toy(source, BUILD_SHARED_LIBS="ON"), cache)
    second = prepare_build("second", toy(source, patches[0], BUILD_SHARED_LIBS="ON"), cache)
    assert (output(first), output(second)) == ("1\n", "10\n")
    assert "libpart.so.1" in first["libraries"]
    assert first["programs"]["toy"]["sha256"] == second["programs"]["toy"]["sha256"]
    assert first["content"] != second["content"]


def test_a_compiler_error_names_the_build_the_line_and_the_log(
    source: Path, tmp_path: Path
) -> None:
    (source / "part.c").write_text(PART.replace("return x;", "return y;"))
    with pytest.raises(ColdbenchError) as caught:
        prepare_build("broken", toy(source), tmp_path / "cache")
    message = str(caught.value)
    assert message.startswith("build broken: ")
    assert "part.c:5:12: error: 'y' undeclared" in message
    log = Path(message.rpartition("(log: ")[2].removesuffix(")"))
    assert "undeclared" in log.read_text()
    (source / "part.c").write_text(PART)
    assert output(prepare_build("broken", toy(source), tmp_path / "cache")) == "1\n"


def test_a_cmake_error_says_what_cmake_said(source: Path, tmp_path: Path) -> None:
    (source / "CMakeLists.txt").write_text(CMAKE_LISTS + 'message(FATAL_ERROR "needs a moon")\n')
    with pytest.raises(ColdbenchError, match=r"CMake Error at CMakeLists.txt:7 .* needs a moon"):
        prepare_build("b", toy(source), tmp_path / "cache")


def test_unknown_targets_and_flags_are_told(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = toy(source).model_copy(update={"targets": ("toyy",)})
    with pytest.raises(ColdbenchError, match=r"no program target toyy .* did you mean toy"):
        prepare_build("b", wrong, tmp_path / "cache")
    record = prepare_build("b", toy(source, LOUDD="ON"), tmp_path / "cache")
    assert record["unused_cmake"] == ["LOUDD"]
    assert "the source knows no cmake flag LOUDD" in caplog.text


def test_user_flags_reach_the_compiler_and_the_key(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = prepare_build("b", toy(source), tmp_path / "cache")
    (source / "part.c").write_text(PART.replace("return x;", "return x + EXTRA;"))
    monkeypatch.setenv("CFLAGS", "-DEXTRA=4")
    record = prepare_build("b", toy(source), tmp_path / "cache")
    assert output(record) == "5\n"
    assert record["environment"]["CFLAGS"] == "-DEXTRA=4"
    monkeypatch.setenv("CFLAGS", "-DEXTRA=5")
    assert output(prepare_build("b", toy(source), tmp_path / "cache")) == "6\n"
    assert plain["environment"].get("CFLAGS") is None


def test_a_build_for_any_cpu_says_so(source: Path, tmp_path: Path) -> None:
    record = prepare_build("b", toy(source, GGML_NATIVE="off"), tmp_path / "cache")
    assert record["cpu"]["native"] is False
    assert set(record["cpu"]) == {"architecture", "native"}
    flagged = toy(source, GGML_NATIVE="off", CMAKE_C_FLAGS="-march=native")
    assert prepare_build("b", flagged, tmp_path / "cache")["cpu"]["native"] is True


def test_objects_for_one_cpu_or_compiler_are_not_taken_for_another(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What -march=native means is in no command line and in no preprocessed source."""
    cache = tmp_path / "cache"
    native, portable = toy(source, CMAKE_C_FLAGS="-march=native"), toy(source, GGML_NATIVE="OFF")

    def rebuilt(spec: Build) -> tuple[str, int]:
        """Build without an earlier build or tree; return its key and what came from ccache."""
        for folder in ("builds", "trees"):
            shutil.rmtree(cache / folder, ignore_errors=True)
        record = prepare_build("b", spec, cache)
        return Path(record["log"]).parent.name, record["ccache"]["hits"]

    keys = [rebuilt(spec)[0] for spec in (native, portable)]
    assert [rebuilt(spec) for spec in (native, portable)] == [(key, 2) for key in keys]
    other = tmp_path / "cpuinfo"
    other.write_text("model name\t: Another CPU\nflags\t\t: fpu sse2\n")
    monkeypatch.setattr(builds, "CPUINFO", other)
    assert rebuilt(portable) == (keys[1], 2)
    key, hits = rebuilt(native)
    assert (key != keys[0], hits) == (True, 0)
    wrapper = tmp_path / "cc"
    wrapper.write_text('#!/bin/sh\nexec cc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    key, hits = rebuilt(portable)
    assert (key != keys[1], hits) == (True, 0)


def test_a_folder_that_is_a_checkout_is_labelled_by_its_full_commit(
    source: Path, tmp_path: Path
) -> None:
    git = ["git", "-C", str(source), "-c", "user.name=t", "-c", "user.email=t"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    record = prepare_build("b", toy(source), tmp_path / "cache")
    assert record["source"]["commit"] == head.stdout.strip()
    assert record["source"]["modified"] is False
    (source / "part.c").write_text(PART + "\n")
    assert prepare_build("b", toy(source), tmp_path / "cache")["source"]["modified"] is True


def test_no_compiler_is_one_line(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ColdbenchError, match="build-essential") as caught:
        prepare_build("b", toy(source), tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_a_killed_job_leaves_no_compile_behind(source: Path, tmp_path: Path) -> None:
    waiting = "add_custom_target(wait COMMAND sleep 600)\nadd_dependencies(toy wait)\n"
    (source / "CMakeLists.txt").write_text(CMAKE_LISTS + waiting)
    call = (
        "import sys, pathlib; from coldbench.sources.builds import prepare_build;"
        "from coldbench.study.builds import Build;"
        "prepare_build('b', Build.model_validate_json(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    arguments = [sys.executable, "-c", call, toy(source).model_dump_json(), str(tmp_path / "cache")]
    with subprocess.Popen(arguments) as job:
        children: dict[str, psutil.Process] = {}
        while job.poll() is None and "sleep" not in children:
            time.sleep(0.05)
            for child in psutil.Process(job.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    children[child.name()] = child
        job.kill()
    assert {"ninja", "sleep"} <= set(children)
    _, alive = psutil.wait_procs(list(children.values()), timeout=30)
    assert alive == []
    (source / "CMakeLists.txt").write_text(CMAKE_LISTS)
    assert output(prepare_build("b", toy(source), tmp_path / "cache")) == "1\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_to_be_full(source: Path, small_disk: Path) -> None:
    (source / "part.c").write_text(PART + "char big[] = {\n" + "1," * 3_000 + "};\n")
    (source / "main.cpp").write_text(MAIN + "#include <map>\nchar big[3000000] = {1};\n")
    with pytest.raises(ColdbenchError, match=r"^build b: the disk is full") as caught:
        prepare_build("b", toy(source), small_disk / "cache")
    assert str(small_disk) in str(caught.value)
    assert not list(small_disk.glob("cache/builds/*/record.json"))


def test_a_cache_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ColdbenchError, match=r"^build b: .*/file/cache.*set COLDBENCH_CACHE"):
        prepare_build("b", toy(source), tmp_path / "file" / "cache")


def test_an_sdist_is_built_from_its_subfolder(source: Path, tmp_path: Path) -> None:
    # The archive stands where a verified download stands.
    cache = tmp_path / "cache"
    archive = tmp_path / "p-1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, "p-1/vendor/toy")
        info = tarfile.TarInfo("p-1/vendor/toy/.git")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"none"))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    folder = cache / "downloads" / sha256
    folder.mkdir(parents=True)
    archive.rename(folder / archive.name)
    sdist = SdistSource(pypi="p==1", sha256=sha256, subfolder="vendor/toy", commit="abc123")
    spec = toy(source).model_copy(update={"source": sdist})
    record = prepare_build("b", spec, cache)
    assert output(record) == "1\n"
    assert record["source"] == sdist.model_dump()
    from_folder = prepare_build("b", toy(source), cache)
    assert from_folder["content"] == record["content"]
    assert from_folder["base_tree"] == record["base_tree"]
