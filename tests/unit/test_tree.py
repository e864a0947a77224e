import io
import os
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.content import checkout_commit, folder_entries, sdist_entries
from coldbench.sources.tree import Patch, Tree

ONE = Patch("one.patch", b"--- a/a.c\n+++ b/a.c\n@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n")
TWO = Patch("two.patch", b"--- a/a.c\n+++ b/a.c\n@@ -1,2 +1,2 @@\n ONE\n-two\n+TWO\n")
MODE_ONLY = Patch("same.patch", b"diff --git a/a.c b/a.c\nold mode 100644\nnew mode 100644\n")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.c").write_text("one\ntwo\n")
    (folder / "b.c").write_text("other\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *settings, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sdist(tmp_path: Path, members: Iterable[tuple[str, bytes | str]]) -> Path:
    """Pack (name, content); text content makes a symbolic link to it."""
    path = tmp_path / "p-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def test_a_folder_comes_out_as_it_went_in_whatever_git_settings_it_carries(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / ".gitignore").write_text("*.gen\nhidden/\n")
    (source / ".gitattributes").write_text("* text eol=crlf ident\n*.c filter=lfs\n")
    (source / "made.gen").write_bytes(b"a\r\nb\n$Id$\n\0")
    (source / "hidden").mkdir()
    (source / "hidden" / 'odd "name\\ é.txt').write_text("x")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("hidden")
    (source / ".git").write_text("gitdir: ../../.git/modules/nowhere\n")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    tree = Tree(tmp_path / "family")
    tree.check_out(tree.add("folder", folder_entries(source)))
    expected = {path: data for path, data in content(source).items() if path != ".git"}
    assert content(tree.work) == expected
    assert os.access(tree.work / "run.sh", os.X_OK)
    assert os.readlink(tree.work / "link") == "hidden"


def test_tree_hash_is_the_one_git_gives_a_checkout(source: Path, tmp_path: Path) -> None:
    git(source, "init", "-q")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "x")
    tree = Tree(tmp_path / "family")
    commit = git(source, "rev-parse", "HEAD")
    stored = tree.add("folder", folder_entries(source))
    assert checkout_commit(source) == (commit, stored)


def test_a_checkout_gives_its_edits_but_not_what_it_ignores(source: Path, tmp_path: Path) -> None:
    (source / ".gitignore").write_text("build/\n*.tracked\n")
    (source / "kept.tracked").write_text("kept")
    (source / "gone.c").write_text("gone")
    git(source, "init", "-q")
    git(source, "add", "-A", "-f")
    git(source, "commit", "-qm", "x")
    (source / "gone.c").unlink()
    (source / "a.c").write_text("edited")
    (source / "new.c").write_text("new")
    (source / "build").mkdir()
    (source / "build" / "huge.o").write_text("object")
    nested = source / "nested"
    nested.mkdir()
    (nested / "n.c").write_text("n")
    git(nested, "init", "-q")
    tree = Tree(tmp_path / "family")
    tree.check_out(tree.add("folder", folder_entries(source)))
    names = set(content(tree.work))
    assert names == {".gitignore", "kept.tracked", "a.c", "b.c", "new.c", "nested/n.c"}
    assert (tree.work / "a.c").read_text() == "edited"


def test_links_out_of_a_folder_become_the_files_they_name(source: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.c").write_text("outside")
    (tmp_path / "models").mkdir()
    (source / "out.c").symlink_to(tmp_path / "outside.c")
    (source / "models").symlink_to("../models")
    tree = Tree(tmp_path / "family")
    tree.check_out(tree.add("folder", folder_entries(source)))
    assert not (tree.work / "out.c").is_symlink()
    assert (tree.work / "out.c").read_text() == "outside"
    assert not (tree.work / "models").is_symlink()


def test_only_differing_files_are_written(source: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "family")
    base = tree.add("folder", folder_entries(source))
    tree.check_out(base)
    before = {name: (tree.work / name).stat().st_mtime_ns for name in ("a.c", "b.c")}
    after = tree.patched(base, [ONE], build="x", source="s")
    (tree.work / "left.over").write_text("")
    tree.check_out(after[-1])
    assert (tree.work / "a.c").read_text() == "ONE\ntwo\n"
    assert (tree.work / "a.c").stat().st_mtime_ns != before["a.c"]
    assert (tree.work / "b.c").stat().st_mtime_ns == before["b.c"]
    assert not (tree.work / "left.over").exists()
    (tree.work / "a.c").write_text("by hand\n")
    tree.check_out(base)
    assert content(tree.work) == content(source)


def test_patches_apply_in_order_and_only_so(source: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "family")
    base = tree.add("folder", folder_entries(source))
    hashes = tree.patched(base, [ONE, TWO], build="x", source="s")
    assert len({base, *hashes}) == 3
    tree.check_out(base)
    with pytest.raises(ColdbenchError) as caught:
        tree.patched(base, [TWO, ONE], build="fast", source="s (commit abc)")
    message = str(caught.value)
    assert message.startswith("build fast: patch 1 (two.patch) does not apply to s (commit abc):")
    assert "a.c" in message
    assert "\n" not in message
    assert content(tree.work) == content(source)


@pytest.mark.parametrize("patch", [MODE_ONLY, Patch("empty.patch", b"just words\n")])
def test_a_patch_that_changes_nothing_is_an_error(
    source: Path, tmp_path: Path, patch: Patch
) -> None:
    tree = Tree(tmp_path / "family")
    base = tree.add("folder", folder_entries(source))
    with pytest.raises(ColdbenchError, match=f"build x: patch 2 \\({patch.name}\\)"):
        tree.patched(base, [ONE, patch], build="x", source="s")


def test_patches_land_inside_another_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("*\n")
    source = tmp_path / "cache" / "source"
    source.mkdir(parents=True)
    (source / "a.c").write_text("one\ntwo\n")
    tree = Tree(tmp_path / "cache" / "family")
    base = tree.add("folder", folder_entries(source))
    diff = Patch("git.patch", b"diff --git a/a.c b/a.c\n" + ONE.content)
    tree.check_out(tree.patched(base, [diff], build="x", source="s")[-1])
    assert (tree.work / "a.c").read_text() == "ONE\ntwo\n"


def test_a_killed_git_does_not_block_the_next(source: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "family")
    base = tree.add("folder", folder_entries(source))
    tree.check_out(base)
    (tmp_path / "family" / "store.git" / "index.lock").write_text("")
    (tree.work / "a.c").unlink()
    Tree(tmp_path / "family").check_out(base)
    assert content(tree.work) == content(source)


def test_sdist_gives_the_subfolder_alone(tmp_path: Path) -> None:
    path = sdist(
        tmp_path,
        [
            ("p-1/pyproject.toml", b""),
            ("p-1/vendor/e/a.c", b"a"),
            ("p-1/vendor/e/.git", b"gitdir: nowhere"),
            ("p-1/vendor/e/sub/l", "../a.c"),
            ("p-1/vendor/e2/b.c", b"b"),
        ],
    )
    found = [(entry.path, entry.stream.read()) for entry in sdist_entries(path, "vendor/e")]
    assert found == [("a.c", b"a"), ("sub/l", b"../a.c")]


def test_sdist_without_the_subfolder_is_an_error(tmp_path: Path) -> None:
    path = sdist(tmp_path, [("p-1/a.c", b"a")])
    with pytest.raises(ColdbenchError, match="no files in the sub-folder vendor/x"):
        list(sdist_entries(path, "vendor/x"))


@pytest.mark.parametrize(
    "member",
    [
        ("p-1/../../escaped", b"x"),
        ("/p-1/absolute", b"x"),
        ("p-1/sub/../../../escaped", b"x"),
        ("p-1/link", "/etc"),
        ("p-1/sub/link", "../../outside"),
    ],
)
def test_hostile_archive_members_are_refused(tmp_path: Path, member: tuple[str, bytes]) -> None:
    path = sdist(tmp_path, [("p-1/a.c", b"a"), member])
    tree = Tree(tmp_path / "deep" / "family")
    before = content(tmp_path)
    with pytest.raises(ColdbenchError, match=r"leads out of .*; refused"):
        tree.add("sdist", sdist_entries(path, "."))
    assert tree.known("sdist") is None
    assert {path for path in content(tmp_path) if "store.git" not in path} == {
        path for path in before if "store.git" not in path
    }


def test_writing_through_an_archived_link_is_contained(tmp_path: Path) -> None:
    path = sdist(tmp_path, [("p-1/d", "e"), ("p-1/e/f", b"1"), ("p-1/d/f", b"2")])
    tree = Tree(tmp_path / "family")
    tree.check_out(tree.add("sdist", sdist_entries(path, ".")))
    assert content(tree.work) == {"d/f": b"2", "e/f": b"1"}


def test_what_is_no_archive_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "p-1.tar.gz"
    path.write_text("<html>not found</html>")
    with pytest.raises(ColdbenchError, match=r"p-1.tar.gz: not a readable tar archive"):
        list(sdist_entries(path, "."))
