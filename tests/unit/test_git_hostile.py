"""Git repositories and settings that are odd, broken or gone: a right build, or one clear line."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.builds import prepare_build
from coldbench.sources.git import resolve
from coldbench.sources.pincheck import check_pins
from coldbench.sources.pins import stack
from coldbench.study.builds import Build, GitRepository, GitSource, Pin
from coldbench.study.lock import Pins as LockEntry
from tests.unit.toy_repository import FILES, Repository, output, toy_repository

PREPARE = """
import pathlib, sys
from coldbench.sources.builds import prepare_build
from coldbench.study.builds import Build
record = prepare_build("b", Build.model_validate_json(sys.argv[1]), pathlib.Path(sys.argv[2]))
print(record["programs"]["toy"]["path"])
"""
VALUE = "int part_big(void) {\n    return %d;\n}\n"


@pytest.fixture
def toy(tmp_path: Path) -> Repository:
    return toy_repository(tmp_path / "toy")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def build(url: Path | str, ref: str, *pins: str) -> Build:
    source = GitSource(git=GitRepository(url=str(url), ref=ref))
    return Build(source=source, pins=[Pin(commit=one) for one in pins], targets=("toy",))


def refused(spec: Build, cache: Path) -> str:
    """Return the one line that a build ends with."""
    with pytest.raises(ColdbenchError) as caught:
        prepare_build("b", spec, cache)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("build b: ")
    return line


def start(spec: Build, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PREPARE, spec.model_dump_json(), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", 'it\'s "quoted"', "$HOME `id` %s", "-dash", "x:y", "é"])
def test_a_repository_may_be_called_anything(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    toy = toy_repository(tmp_path / "git" / name)
    toy.branch("feature", "main")
    pin = toy.replace("main.c", "return 1", "return 10")
    merged = stack(GitRepository(url=str(toy.folder), ref="main"), [Pin(commit=pin)], cache)
    assert merged.facts["git"] == str(toy.folder)
    assert merged.tree == toy.git("rev-parse", "feature^{tree}")
    monkeypatch.chdir(tmp_path / "git")
    assert stack(GitRepository(url=f"./{name}", ref="main"), [], cache).tree != merged.tree


@pytest.mark.parametrize("ref", ["feature/it's", 'a"b', "$HOME", "é", "a;id", "%s"])
def test_a_branch_may_be_called_what_git_allows(toy: Repository, cache: Path, ref: str) -> None:
    toy.git("branch", ref)
    commit = toy.head()
    toy.replace("main.c", "return 1", "return 10")
    facts = stack(GitRepository(url=str(toy.folder), ref=ref), [], cache).facts
    assert (facts["ref"], facts["commit"]) == (ref, commit)


@pytest.mark.parametrize("name", ["..", ".git", ".GIT"])
def test_a_tree_that_reaches_out_is_refused(toy: Repository, cache: Path, name: str) -> None:
    """Only a forged tree has such names: git's own commands refuse to make one."""
    inner = toy.git("rev-parse", "HEAD^{tree}")

    def plumbing(*arguments: str, given: bytes = b"") -> bytes:
        command = ["git", "-C", str(toy.folder), *arguments]
        return subprocess.run(command, input=given, capture_output=True, check=True).stdout

    forged = b"40000 %s\0%s" % (name.encode(), bytes.fromhex(inner))
    forged += plumbing("cat-file", "tree", inner)
    tree = plumbing("hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=forged)
    commit = toy.git("commit-tree", "-m", "forged", tree.decode().strip())
    toy.git("update-ref", "refs/heads/forged", commit)
    line = refused(build(toy.folder, "forged"), cache)
    assert f"the file {name}/CMakeLists.txt leads out of the source; refused" in line
    assert not list(cache.glob("trees/*/CMakeLists.txt"))


@pytest.mark.parametrize("target", ["inner/up/../../x", "/etc/passwd", "../x", "inner/../../x"])
def test_a_link_that_may_reach_out_is_refused(toy: Repository, cache: Path, target: str) -> None:
    (toy.folder / "inner").mkdir()
    (toy.folder / "inner" / "up").symlink_to("..")
    (toy.folder / "inner" / "link").symlink_to("../main.c")
    toy.commit()
    assert output(prepare_build("b", build(toy.folder, "main"), cache)) == "1 2 3\n"
    (toy.folder / "bad").symlink_to(target)
    toy.commit()
    assert f"link bad -> {target} leads out of the source" in refused(
        build(toy.folder, "main"), cache
    )


# --- settings of others -------------------------------------------------------------------------


def test_no_setting_or_variable_of_the_user_reaches_a_build(
    toy: Repository, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.commit_files("attributes", {".gitattributes": "*.c text eol=crlf ident filter=loud\n"})
    toy.branch("feature", "main")
    pin = toy.replace("main.c", "return 1", "return 10")
    ran = tmp_path / "ran"
    hooks = tmp_path / "template" / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "post-merge", "pre-commit", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\nexit 1\n")
        (hooks / name).chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f"[init]\n\ttemplateDir = {tmp_path}/template\n\tdefaultObjectFormat = sha256\n"
        f"[core]\n\thooksPath = {hooks}\n\tautocrlf = true\n\tfsmonitor = {hooks}/pre-commit\n"
        "[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = false\n[merge]\n\trenames = false\n"
        f'[filter "loud"]\n\tsmudge = tee -a {ran}\n\trequired = true\n'
        '[fetch]\n\tprune = true\n\tpruneTags = true\n[protocol "file"]\n\tallow = never\n'
        "[safe]\n\tbareRepository = explicit\n[transfer]\n\tfsckObjects = true\n"
    )
    strange = {
        "GIT_CONFIG_GLOBAL": str(settings),
        "GIT_DIR": str(toy.folder / ".git"),
        "GIT_WORK_TREE": str(toy.folder),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "objects"),
        "GIT_NAMESPACE": "strange",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "false",
        "GIT_CONFIG_PARAMETERS": "'user.useconfigonly=true'",
        "GIT_TEMPLATE_DIR": str(tmp_path / "template"),
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TRACE": "1",
    }
    before = {path: path.stat().st_mtime_ns for path in (toy.folder / ".git").rglob("*")}
    for name, value in strange.items():
        monkeypatch.setenv(name, value)
    record = prepare_build("b", build(toy.folder, "main", pin), cache)
    found = check_pins("b", build(toy.folder, "main", pin), cache)
    for name in strange:
        monkeypatch.delenv(name)
    assert output(record) == "10 2 3\n"
    assert found.findings == []
    assert record["tree"] == toy.git("rev-parse", "feature^{tree}")
    (main,) = (cache / "trees").glob("*/src/main.c")
    assert main.read_bytes() == FILES["main.c"].replace("return 1", "return 10").encode()
    assert not ran.exists()
    # The repository is only read.
    assert {path: path.stat().st_mtime_ns for path in (toy.folder / ".git").rglob("*")} == before


# --- servers ------------------------------------------------------------------------------------


def test_a_server_of_the_old_protocol_gives_what_is_no_tip(
    toy: Repository, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protocol 0 refuses single commits that no ref names; then all branches are fetched."""
    first = toy.head()
    toy.replace("main.c", "return 1", "return 10")
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        'for command; do :; done\nunset GIT_PROTOCOL\nexec sh -c "$command"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    url = f"ssh://somewhere{toy.folder}"
    assert output(prepare_build("b", build(url, "main"), cache)) == "10 2 3\n"
    assert output(prepare_build("b", build(url, first), cache)) == "1 2 3\n"
    assert (tmp_path / "asked").read_text().count("git-upload-pack") >= 3
    assert "has no commit 1111" in refused(build(url, "1" * 40), cache)


@pytest.fixture
def plain_server(tmp_path: Path) -> Iterator[str]:
    """A web server that knows nothing of git: no shallow fetches, no single commits."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_plain_web_server_will_do(
    toy: Repository, cache: Path, plain_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    first = toy.head()
    toy.replace("main.c", "return 1", "return 10")
    toy.git("update-server-info")
    url = f"{plain_server}/toy/.git"
    assert output(prepare_build("b", build(url, "main"), cache)) == "10 2 3\n"
    assert output(prepare_build("b", build(url, first), cache)) == "1 2 3\n"
    assert "did you mean main?" in refused(build(url, "mian"), cache)
    assert "is no git repository that git can find" in refused(
        build(f"{plain_server}/nothing", "main"), cache
    )


def test_nobody_answers(cache: Path) -> None:
    line = refused(build("http://127.0.0.1:9/x.git", "main"), cache)
    assert "cannot be reached: are you offline?" in line


# --- stores that were damaged or interrupted ----------------------------------------------------


def test_a_locked_stack_is_built_offline(toy: Repository, tmp_path: Path, cache: Path) -> None:
    toy.branch("feature", "main")
    pin = toy.replace("main.c", "return 1", "return 10")
    spec = build(toy.folder, "main", pin)
    locked = LockEntry(tmp_path / "study.yaml", "builds", "b", locked=True)
    prepare_build("b", spec, cache, LockEntry(tmp_path / "study.yaml", "builds", "b"))
    shutil.rmtree(toy.folder)
    for folder in ("builds", "trees"):
        shutil.rmtree(cache / folder)
    record = prepare_build("b", spec, cache, locked)
    assert output(record) == "10 2 3\n"
    assert "is no git repository that git can find" in refused(spec, cache)


@pytest.mark.parametrize("lost", ["objects/pack/*", "objects", "HEAD"])
def test_a_damaged_store_is_named_and_made_again(toy: Repository, cache: Path, lost: str) -> None:
    spec = build(toy.folder, toy.head())
    prepare_build("b", spec, cache)
    for folder in ("builds", "trees"):
        shutil.rmtree(cache / folder)
    (store,) = (cache / "git").glob("*/tips.git")
    for path in store.glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    line = refused(spec, cache)
    assert f"{store}: " in line
    assert "delete this folder and run the same command again" in line
    shutil.rmtree(store)
    assert output(prepare_build("b", spec, cache)) == "1 2 3\n"


def test_a_killed_job_leaves_nothing_that_the_next_cannot_use(toy: Repository, cache: Path) -> None:
    """Killed at many moments: while it fetches, imports, checks out, configures and compiles."""
    toy.commit_files("data", {f"data/{one}": os.urandom(200_000).hex() for one in range(30)})
    toy.branch("feature", "main")
    pin = toy.commit_files("big", {"part_big.c": VALUE % 1})
    spec = build(toy.folder, "main", pin)
    for number in range(5):
        with start(spec, cache) as job:
            children: set[psutil.Process] = set()
            until = time.monotonic() + 0.5 + 0.4 * number
            while job.poll() is None and time.monotonic() < until:
                children.update(psutil.Process(job.pid).children(recursive=True))
                time.sleep(0.01)
            job.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(list(children), timeout=30)
        assert alive == []
    record = prepare_build("b", spec, cache)
    assert output(record) == "1 2 3\n"
    assert record["tree"] == toy.git("rev-parse", "feature^{tree}")
    (work,) = (cache / "trees").glob("*/src")
    assert (work / "data" / "7").read_text() == (toy.folder / "data" / "7").read_text()
    left = [*cache.glob("git/**/tmp_*"), *cache.glob("trees/*/store.git/**/tmp_*")]
    assert left == []


def test_two_jobs_build_one_repository_at_once(toy: Repository, cache: Path) -> None:
    toy.branch("other", "main")
    toy.replace("main.c", "return 1", "return 10")
    jobs = [start(build(toy.folder, ref), cache) for ref in ("main", "other", "main", "other")]
    shown = []
    for job in jobs:
        path, _ = job.communicate(timeout=300)
        assert job.returncode == 0
        shown.append(subprocess.run([path.strip()], capture_output=True, text=True).stdout)
    assert shown == ["1 2 3\n", "10 2 3\n"] * 2


# --- one store for all histories ----------------------------------------------------------------


def packed(cache: Path) -> int:
    store = cache / "git" / "history.git"
    command = ["git", f"--git-dir={store}", "count-objects", "-v"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(shown.partition("in-pack: ")[2].split()[0])


def test_of_a_clone_only_what_is_new_is_fetched(
    toy: Repository, tmp_path: Path, cache: Path
) -> None:
    toy.commit_files("data", {f"data/{one}": f"{one}\n" for one in range(50)})
    clone = Repository(tmp_path / "clone")
    toy.git("tag", "old")
    clone.git("fetch", "--quiet", str(toy.folder), "refs/tags/old:refs/tags/old")
    clone.branch("feature", "old")
    pin = clone.replace("main.c", "return 1", "return 10")
    mine = toy.replace("main.c", "return 2", "return 20")
    stack(GitRepository(url=str(toy.folder), ref="old"), [Pin(commit=mine)], cache)
    before = packed(cache)
    stack(GitRepository(url=str(clone.folder), ref="old"), [Pin(commit=pin)], cache)
    assert before > 50
    # A commit, a tree and a file, and what they are deltas of.
    assert 3 <= packed(cache) - before <= 6


def test_the_beginning_of_another_repositorys_commit_names_nothing_here(
    toy: Repository, tmp_path: Path, cache: Path
) -> None:
    other = toy_repository(tmp_path / "other")
    commit = other.replace("main.c", "return 1", "return 10")
    assert resolve(str(other.folder), commit[:9], cache) == commit
    with pytest.raises(ColdbenchError, match=f"has no branch, tag or commit {commit[:9]}"):
        resolve(str(toy.folder), commit[:9], cache)


def test_stores_may_be_deleted(toy: Repository, cache: Path) -> None:
    """Work trees borrow what they are made of from the stores: they are made again with them."""
    toy.branch("feature", "main")
    pin = toy.replace("main.c", "return 1", "return 10")
    specs = build(toy.folder, "main", pin), build(toy.folder, "main")
    for _ in range(2):
        for spec, printed in zip(specs, ("10 2 3\n", "1 2 3\n"), strict=True):
            shutil.rmtree(cache / "builds", ignore_errors=True)
            assert output(prepare_build("b", spec, cache)) == printed
        shutil.rmtree(cache / "git")


def test_a_lost_file_is_told_with_its_store(toy: Repository, cache: Path) -> None:
    spec = build(toy.folder, toy.head())
    prepare_build("b", spec, cache)
    for folder in ("builds", "trees"):
        shutil.rmtree(cache / folder)
    (store,) = (cache / "git").glob("*/tips.git")
    (pack,) = (store / "objects" / "pack").glob("*.pack")
    data = pack.read_bytes()
    for path in (store / "objects" / "pack").iterdir():
        path.unlink()
    command = ["git", f"--git-dir={store}", "unpack-objects", "-q"]
    subprocess.run(command, input=data, check=True)
    lost = toy.git("rev-parse", "HEAD:main.c")
    (store / "objects" / lost[:2] / lost[2:]).unlink()
    assert f"{store}: lacks the file main.c; delete this folder" in refused(spec, cache)
