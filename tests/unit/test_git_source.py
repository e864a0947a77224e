"""Builds from git repositories, with the real git, cmake, ninja and ccache."""

import os
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.sources.builds import prepare_build
from coldbench.sources.git import location, remote_refs, resolve, store
from coldbench.sources.stamps import build_ref_stamp
from coldbench.study.builds import Build, GitRepository, GitSource, Pin
from coldbench.study.lock import LockedBuild, read_lock
from coldbench.study.lock import Pins as LockEntry
from coldbench.study.reading import read_study
from tests.unit.toy_repository import FILES, Repository, output, toy_repository


@pytest.fixture
def toy(tmp_path: Path) -> Repository:
    return toy_repository(tmp_path / "toy")


def build(url: Path | str, ref: str, commit: str | None = None) -> Build:
    source = GitSource(git=GitRepository(url=str(url), ref=ref, commit=commit))
    return Build(source=source, targets=("toy",))


def test_refs_are_resolved_to_full_commits(toy: Repository, tmp_path: Path) -> None:
    first = toy.head()
    toy.git("tag", "-a", "v1", "-m", "annotated")
    second = toy.replace("main.c", "return 2", "return 20")
    toy.pull(7, first)
    cache = tmp_path / "cache"
    for ref, commit in {
        "v1": first,
        "main": second,
        "HEAD": second,
        "refs/heads/main": second,
        "pull/7": first,
        first: first,
        first[:9]: first,
    }.items():
        assert resolve(str(toy.folder), ref, cache) == commit
    record = prepare_build("b", build(toy.folder, "main"), cache)
    assert output(record) == "1 20 3\n"
    assert record["source"] == {
        "git": str(toy.folder),
        "ref": "main",
        "commit": second,
        "tree": toy.git("rev-parse", "main^{tree}"),
        "pins": [],
        "merged": None,
        "submodules": [],
    }
    assert record["base_tree"] == record["tree"] == record["source"]["tree"]


def test_a_ref_of_two_meanings_and_an_unknown_one_are_refused(
    toy: Repository, tmp_path: Path
) -> None:
    toy.git("tag", "release")
    toy.branch("release", "main")
    toy.commit()
    with pytest.raises(ColdbenchError, match=r"release names refs/.* and refs/.*full name"):
        resolve(str(toy.folder), "release", tmp_path / "cache")
    with pytest.raises(ColdbenchError, match=r"no branch, tag or commit relase; did you mean rele"):
        resolve(str(toy.folder), "relase", tmp_path / "cache")
    with pytest.raises(ColdbenchError, match=r"build b: .*/no: is no git repository"):
        prepare_build("b", build(tmp_path / "no", "main"), tmp_path / "cache")


@pytest.mark.parametrize("name", ["run-401", "timed out", "Permission denied"])
def test_a_folders_name_is_no_cause(name: str, tmp_path: Path) -> None:
    with pytest.raises(ColdbenchError, match=r"is no git repository that git can find"):
        resolve(str(tmp_path / name), "main", tmp_path / "cache")


def test_a_ref_of_digits_stays_text(toy: Repository, tmp_path: Path) -> None:
    toy.branch("0123456", "main")
    toy.branch("12e4567", "main")
    study = tmp_path / "study.yaml"
    study.write_text(
        f"models: {{m: {{source: {{path: m.gguf}}}}}}\n"
        f"builds:\n  a: {{source: {{git: {{url: {toy.folder}, ref: 0123456}}}}, targets: [toy]}}\n"
        f"  b: {{source: {{git: {{url: {toy.folder}, ref: 12e4567}}}}, targets: [toy]}}\n"
        "workloads: {w: {driver: llama-bench}}\n"
        "arms: [{name: a, build: a}, {name: b, build: b}]\nblocks: {cold: 3}\n"
    )
    for one in read_study(study).builds.values():
        assert isinstance(one.source, GitSource)
        commit = resolve(one.source.git.url, one.source.git.ref, tmp_path / "cache")
        assert commit == toy.head()


def test_one_commit_is_fetched_without_its_past(toy: Repository, tmp_path: Path) -> None:
    first = toy.head()
    for number in range(3):
        toy.replace("README", "toy", f"toy {number}")
    toy.replace("main.c", "return 3", "return 30")
    cache = tmp_path / "cache"
    assert output(prepare_build("old", build(toy.folder, first), cache)) == "1 2 3\n"
    assert output(prepare_build("new", build(toy.folder, "main"), cache)) == "1 2 30\n"
    with store(cache, str(toy.folder), "tips") as tips:
        assert tips.read("rev-list", "--all", "--count") == "2"  # not five
    assert not list((cache / "git").glob("*/history.git"))


def test_a_shallow_clone_gives_its_tip_and_says_what_it_lacks(
    toy: Repository, tmp_path: Path
) -> None:
    first = toy.head()
    second = toy.replace("main.c", "return 1", "return 10")
    clone = tmp_path / "clone"
    toy.git("clone", "--quiet", "--depth=1", f"file://{toy.folder}", str(clone))
    record = prepare_build("tip", build(clone, "main"), tmp_path / "cache")
    assert (output(record), record["source"]["commit"]) == ("10 2 3\n", second)
    with pytest.raises(ColdbenchError, match=rf"{first}: it is a shallow clone; .*--unshallow"):
        prepare_build("old", build(clone, first), tmp_path / "cache")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user_is_read(toy: Repository, tmp_path: Path) -> None:
    first = toy.head()
    toy.replace("main.c", "return 1", "return 10")
    for path in [toy.folder, *toy.folder.rglob("*")]:
        os.chown(path, 12345, 12345)
    cache = tmp_path / "cache"
    assert output(prepare_build("tip", build(toy.folder, "main"), cache)) == "10 2 3\n"
    assert output(prepare_build("old", build(toy.folder, first), cache)) == "1 2 3\n"


def test_a_bundle_is_a_repository(toy: Repository, tmp_path: Path) -> None:
    first = toy.head()
    second = toy.replace("main.c", "return 1", "return 10")
    bundle = tmp_path / "toy.bundle"
    toy.git("bundle", "create", str(bundle), "--all")
    shutil.rmtree(toy.folder)
    for ref, commit, printed in (("main", second, "10 2 3\n"), (first, first, "1 2 3\n")):
        record = prepare_build("b", build(bundle, ref), tmp_path / "cache")
        assert (record["source"]["commit"], output(record)) == (commit, printed)


def test_what_was_fetched_needs_no_repository(toy: Repository, tmp_path: Path) -> None:
    commit, cache = toy.head(), tmp_path / "cache"
    prepare_build("b", build(toy.folder, "main"), cache)
    toy.folder.rename(tmp_path / "away")
    shutil.rmtree(cache / "builds")
    shutil.rmtree(cache / "trees")
    assert output(prepare_build("b", build(toy.folder, commit), cache)) == "1 2 3\n"
    assert output(prepare_build("b", build(toy.folder, "main", commit), cache)) == "1 2 3\n"
    with pytest.raises(ColdbenchError, match="is no git repository that git can find"):
        prepare_build("b", build(toy.folder, "main"), cache)


def test_submodules_are_part_of_the_source(tmp_path: Path) -> None:
    inner = Repository(tmp_path / "deep" / "inner")
    inner_commit = inner.commit_files("inner", {"value.h": "#define VALUE 5\n"})
    middle = Repository(tmp_path / "deep" / "middle")
    middle.git("submodule", "--quiet", "add", "../inner", "lib/inner")
    middle_commit = middle.commit_files("middle", {"x.h": '#include "lib/inner/value.h"\n'})
    toy = toy_repository(tmp_path / "toy")
    toy.git("submodule", "--quiet", "add", str(middle.folder), "middle")
    toy.replace("main.c", '#include "toy.h"', '#include "toy.h"\n#include "middle/x.h"')
    commit = toy.replace("main.c", "return 2", "return VALUE")
    inner.commit_files("moved", {"value.h": "#define VALUE 6\n"})
    record = prepare_build("b", build(toy.folder, commit), tmp_path / "cache")
    assert output(record) == "1 5 3\n"
    assert record["source"]["submodules"] == [
        {"path": "middle", "url": str(middle.folder), "commit": middle_commit},
        {"path": "middle/lib/inner", "url": str(inner.folder), "commit": inner_commit},
    ]
    assert record["source"]["tree"] == toy.git("rev-parse", "HEAD^{tree}")


@pytest.mark.parametrize("url", ["ext::sh -c touch% /tmp/never", "-upload-pack=x", "nowhere"])
def test_a_submodule_from_a_strange_place_is_refused(
    toy: Repository, tmp_path: Path, url: str
) -> None:
    toy.git("update-index", "--add", "--cacheinfo", f"160000,{toy.head()},sub")
    (toy.folder / ".gitmodules").write_text(f'[submodule "s"]\n\tpath = sub\n\turl = "{url}"\n')
    toy.git("add", ".gitmodules")
    toy.git("commit", "--quiet", "-m", "submodule")
    with pytest.raises(ColdbenchError, match=r"build b: .*submodule sub"):
        prepare_build("b", build(toy.folder, "main"), tmp_path / "cache")
    assert not Path("/tmp/never").exists()


def test_a_link_out_of_the_source_is_refused(toy: Repository, tmp_path: Path) -> None:
    (toy.folder / "inside").symlink_to("main.c")
    toy.commit()
    prepare_build("b", build(toy.folder, "main"), tmp_path / "cache")
    (toy.folder / "passwords").symlink_to("../../etc/passwd")
    toy.commit()
    with pytest.raises(ColdbenchError, match=r"link passwords -> \.\./\.\./etc/passwd leads out"):
        prepare_build("b", build(toy.folder, "main"), tmp_path / "cache")


def test_one_commit_built_at_two_paths_is_the_same_bytes(toy: Repository, tmp_path: Path) -> None:
    clone = tmp_path / "a-longer-name-for-the-clone"
    toy.git("clone", "--quiet", str(toy.folder), str(clone))
    here = prepare_build("b", build(toy.folder, "main"), tmp_path / "cache")
    there = prepare_build("b", build(clone, "main"), tmp_path / "another" / "cache")
    assert here["programs"]["toy"]["path"] != there["programs"]["toy"]["path"]
    assert here["programs"]["toy"]["sha256"] == there["programs"]["toy"]["sha256"]
    # With one cache it is one build: the content decides, not where it came from.
    again = prepare_build("b", build(clone, "main"), tmp_path / "cache")
    assert again["programs"] == here["programs"]
    assert (again["source"]["git"], again["seconds"]) == (str(clone), here["seconds"])


def test_the_users_git_settings_change_nothing(
    toy: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.commit_files("attributes", {".gitattributes": "*.c text eol=crlf\n* export-ignore\n"})
    settings = tmp_path / "gitconfig"
    settings.write_text("[core]\n\tautocrlf = true\n\thooksPath = /nowhere\n[fetch]\n\tprune = 1\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    record = prepare_build("b", build(toy.folder, "main"), tmp_path / "cache")
    assert record["tree"] == record["source"]["tree"]
    (main,) = (tmp_path / "cache" / "trees").glob("*/src/main.c")
    assert main.read_text() == FILES["main.c"]


def test_the_lock_holds_what_a_branch_was(toy: Repository, tmp_path: Path) -> None:
    study, cache, first = tmp_path / "study.yaml", tmp_path / "cache", toy.head()
    entry = LockEntry(study, "builds", "b")
    strict = LockEntry(study, "builds", "b", locked=True)
    with pytest.raises(ColdbenchError, match=r"builds\.b: is not there.*locked=true forbids"):
        prepare_build("b", build(toy.folder, "main"), cache, strict)
    prepare_build("b", build(toy.folder, "main"), cache, entry)
    toy.replace("main.c", "return 1", "return 10")
    toy.branch("other", "main")
    for allowed in (entry, strict):
        record = prepare_build("b", build(toy.folder, "main"), cache, allowed)
        assert (record["source"]["commit"], output(record)) == (first, "1 2 3\n")
    assert read_lock(study).builds["b"].commit == first
    with pytest.raises(ColdbenchError, match=r"another url or ref.*locked=true forbids"):
        prepare_build("b", build(toy.folder, "other"), cache, strict)
    record = prepare_build("b", build(toy.folder, "other"), cache, entry)
    assert output(record) == "10 2 3\n"
    assert read_lock(study).builds["b"].commit == toy.head()


def test_a_job_runs_again_only_when_the_lock_says_another_commit(
    toy: Repository, tmp_path: Path
) -> None:
    study, record, spec = tmp_path / "study.yaml", tmp_path / "b.json", build(toy.folder, "main")
    entry = LockEntry(study, "builds", "b")

    def stamp() -> str:
        return build_ref_stamp(spec, entry, record)

    def job() -> str:
        given = stamp()
        made = prepare_build("b", spec, tmp_path / "cache", entry)
        write_json(record, made | {"ref_stamp": given})
        return given

    assert job() == stamp() == ""  # the job wrote the lock itself
    toy.replace("main.c", "return 1", "return 10")
    assert stamp() == ""
    (tmp_path / "study.lock.yaml").unlink()
    assert job() == stamp() == "unlocked"
    assert read_lock(study).builds["b"].commit == toy.head()
    other = toy.replace("main.c", "return 10", "return 11")
    assert spec.source is not None
    entry.write(LockedBuild(git=spec.source.git, commit=other))
    assert job() == stamp() == other
    assert build_ref_stamp(build(toy.folder, other), entry, record) == ""


@pytest.mark.parametrize(
    "url",
    [
        "https://secret@forge.example/x.git",
        "https://user:secret@forge.example/x.git",
        "ssh://user:secret@forge.example/x.git",
        "ext::sh -c true",
        "--upload-pack=true",
    ],
)
def test_an_address_with_a_secret_or_a_program_is_refused(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GitRepository(url=url, ref="main")
    assert "secret" not in str(caught.value.errors()[0]["msg"]).replace("hold secrets", "")


@pytest.mark.parametrize("ref", ["", "-x", "a b", "main~1", "a..b", "HEAD@{1}", "x/", "a*"])
def test_a_ref_that_is_an_expression_is_refused(ref: str) -> None:
    with pytest.raises(ValidationError):
        GitRepository(url="x", ref=ref)


def test_a_short_commit_is_no_pin() -> None:
    with pytest.raises(ValidationError, match="'257813839' is no full commit"):
        Pin(commit="257813839")


def test_addresses_have_one_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_repository(tmp_path / "toy")
    (tmp_path / "link").symlink_to("toy")
    monkeypatch.chdir(tmp_path)
    for url in ("toy", "./link", f"file://{tmp_path}/toy"):
        assert location(url) == str(tmp_path / "toy")
        assert "refs/heads/main" in remote_refs(location(url))
    assert location("git@forge.example:x/y.git") == "git@forge.example:x/y.git"
    assert location("https://forge.example/x") == "https://forge.example/x"


def test_a_submodule_without_a_url_is_told(
    toy: Repository, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy.git("update-index", "--add", "--cacheinfo", f"160000,{toy.head()},sub")
    toy.git("commit", "--quiet", "-m", "a repository inside, added by accident")
    assert output(prepare_build("b", build(toy.folder, "main"), tmp_path / "cache")) == "1 2 3\n"
    assert f"{toy.folder}: the submodule sub has no url; its folder stays empty" in caplog.text
