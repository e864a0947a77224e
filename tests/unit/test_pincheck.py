"""The preflight of a stack of pins: it names all that is wrong."""

import json
from pathlib import Path

import pytest

from coldbench.cli import main
from coldbench.publish import pinstext
from coldbench.sources.builds import prepare_build
from coldbench.sources.pincheck import Finding, check_pins
from coldbench.study.builds import Pin
from tests.unit.toy_repository import HEADER, Repository, build, change, output


def kinds(findings: list[Finding]) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.kind, one.pins) for one in findings]


def rotten(toy: Repository) -> tuple[list[Pin], list[Pin]]:
    """Make five pins, each with a rot of another kind, and five mended ones."""
    one = change(toy, "one", "return 1", "return 10")
    toy.pull(1, toy.replace("main.c", "return 10", "return 100"))  # moved on
    moved = toy.head()
    clash = change(toy, "clash", "return 1", "return 11")
    toy.pull(2, clash)
    rebased = change(toy, "unclash", "return 2", "return 20")
    toy.branch("main", "v1")
    contained = toy.commit_files("early", {"docs/early": "early\n"})
    toy.git("tag", "v2")
    toy.branch("fork", "v1")
    toy.commit_files("fork's own", {"fork/a": "a\n"})
    foreign = toy.commit_files("fork's own", {"fork/b": "b\n"})
    toy.branch("feature", "fork")
    dragging = toy.commit_files("feature", {"feature": "feature\n"})
    toy.branch("fork", "fork")
    toy.commit_files("fork goes on", {"fork/c": "c\n"})
    toy.branch("feature-rebased", "v1")
    clean = toy.commit_files("feature", {"feature": "feature\n"})
    toy.branch("gone", "v1")
    lost = toy.commit_files("lost", {"lost": "lost\n"})
    toy.forget("gone")
    toy.branch("found", "v1")
    found = toy.commit_files("found", {"lost": "lost\n"})
    assert foreign != dragging
    return (
        [
            Pin(commit=one, pull=1),
            Pin(commit=clash, pull=2),
            Pin(commit=contained),
            Pin(commit=dragging, ref="feature"),
            Pin(commit=lost),
        ],
        [
            Pin(commit=moved, pull=1),
            Pin(commit=rebased),
            Pin(commit=clean, ref="feature-rebased"),
            Pin(commit=found),
        ],
    )


def test_one_preflight_names_all_five_kinds_of_rot(toy: Repository, cache: Path) -> None:
    pins, mended = rotten(toy)
    found = check_pins("b", build(toy, *pins, ref="v2"), cache)
    assert kinds(found.findings) == [
        ("conflict", (1, 2)),
        ("moved", (1,)),
        ("contained", (3,)),
        ("diverged", (4,)),
        ("orphaned", (5,)),
    ]
    conflict, moved, contained, diverged, orphaned = (one.text for one in found.findings)
    assert "pin 2 (#2 at " in conflict
    assert "clashes with pin 1 (#1 at " in conflict
    assert "main.c (contents)" in conflict
    assert f"moved on by 1 commit and stands at {mended[0].commit}" in moved
    assert "the base has it" in contained
    assert "2 of the 3 commits that it brings are not its own but of heads/fork" in diverged
    assert "no branch or tag of" in orphaned
    table = [(one.commits, one.alone, one.stacked) for one in found.pins]
    assert table == [
        (1, True, True),
        (1, True, False),
        (0, True, True),
        (3, True, True),
        (1, True, True),
    ]
    after = check_pins("b", build(toy, *mended, ref="v2"), cache, compiling=True)
    assert after.findings == []
    assert after.changes == {"files": 3, "insertions": 4, "deletions": 2}
    record = prepare_build("b", build(toy, *mended, ref="v2"), cache)
    assert output(record) == "100 20 3\n"
    assert record["tree"] == after.tree


def test_the_command_prints_all_and_fails(
    toy: Repository,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLDBENCH_CACHE", str(cache))
    pins, mended = rotten(toy)

    def study(pins: list[Pin]) -> str:
        path = tmp_path / "study.yaml"
        given = [pin.model_dump(exclude_none=True) for pin in pins]
        listed = "".join(f"      - {json.dumps(one)}\n" for one in given)
        path.write_text(
            "models: {m: {source: {path: m.gguf}}}\nbuilds:\n"
            f"  base: {{source: {{git: {{url: {toy.folder}, ref: v2}}}}, targets: [toy]}}\n"
            f"  stack:\n    like: base\n    pins:\n{listed}"
            "workloads: {w: {driver: llama-bench}}\n"
            "arms: [{name: a, build: base}, {name: b, build: stack}]\nblocks: {cold: 3}\n"
        )
        return str(path)

    with pytest.raises(SystemExit) as ended:
        main(["pins", study(pins)])
    shown = capsys.readouterr().out
    assert ended.value.code == 1
    for kind in ("conflict", "moved", "contained", "diverged", "orphaned"):
        assert f"\n- {kind}: " in shown
    assert not (tmp_path / "study.lock.yaml").exists()
    main(["pins", study(mended)])
    assert "Nothing is wrong with the stack." in capsys.readouterr().out


def test_all_clashes_are_found_with_their_pairs(toy: Repository, cache: Path) -> None:
    one = change(toy, "a", "return 1", "return 10")
    two = change(toy, "b", "return 1", "return 11")
    toy.branch("c", "v1")
    three = toy.commit_files(
        "c", {"toy.h": HEADER.replace("one(void)", "one()"), "README": "mine\n"}
    )
    change(toy, "d", "return 2", "return 20")
    toy.replace("toy.h", "int one(void)", "long one(void)")
    (toy.folder / "README").unlink()
    four = toy.commit("remove")
    toy.branch("main", "v1")
    toy.replace("main.c", "return 3", "return 300")
    five = change(toy, "e", "return 3", "return 30")
    toy.git("checkout", "--quiet", "main")
    found = check_pins("b", build(toy, one, two, three, four, five, ref="main"), cache)
    assert kinds(found.findings) == [
        ("conflict", (0, 5)),
        ("conflict", (1, 2)),
        ("conflict", (3, 4)),
    ]
    assert "README (modify/delete), toy.h (contents)" in found.findings[2].text
    assert [one.stacked for one in found.pins] == [True, False, True, False, False]
    assert [one.alone for one in found.pins] == [True, True, True, True, False]
    assert "conflict" in pinstext.preflight(found)


def test_pins_that_clash_only_together(toy: Repository, cache: Path) -> None:
    """Two pins together move a whole folder; a third adds a file where it was."""
    toy.branch("main", "v1")
    names = "abcd"
    toy.commit_files("lib", {f"lib/{one}": f"{one * 9}\n" * 20 for one in names})
    moves = []
    for half in (names[:2], names[2:]):
        toy.branch(half, "main")
        (toy.folder / "new").mkdir(exist_ok=True)
        for one in half:
            toy.git("mv", f"lib/{one}", f"new/{one}")
        moves.append(toy.commit(half))
    toy.branch("adds", "main")
    adds = toy.commit_files("adds", {"lib/e": "e\n"})
    found = check_pins("b", build(toy, *moves, adds, ref="main"), cache)
    assert kinds(found.findings) == [("conflict", (3, 1, 2))]
    assert (
        "not with all of them together: new/e (directory rename suggested)"
        in found.findings[0].text
    )


def test_a_pushed_over_head_is_moved_and_its_old_commit_orphaned(
    toy: Repository, cache: Path
) -> None:
    old = change(toy, "feature", "return 1", "return 10")
    toy.branch("feature", "v1")
    new = toy.replace("main.c", "return 1", "return 11")
    found = check_pins("b", build(toy, Pin(commit=old, ref="feature")), cache)
    assert kinds(found.findings) == [("moved", (1,)), ("orphaned", (1,))]
    assert f"was pushed over: the pin is not in it and stands at {new}" in found.findings[0].text
    toy.forget("feature")
    found = check_pins("b", build(toy, Pin(commit=old, ref="feature")), cache)
    assert "feature is gone" in found.findings[0].text
    # It is in the cache: it still builds when the repository has cleaned up.
    toy.git("reflog", "expire", "--expire=all", "--all")
    toy.git("gc", "--quiet", "--prune=now")
    assert output(prepare_build("b", build(toy, old), cache)) == "10 2 3\n"


def test_a_commit_that_is_nowhere_any_more(toy: Repository, cache: Path) -> None:
    good = change(toy, "one", "return 1", "return 10")
    found = check_pins("b", build(toy, "1" * 40, good), cache)
    assert kinds(found.findings) == [("orphaned", (1,))]
    assert "has no commit 1111" in found.findings[0].text
    assert [one.stacked for one in found.pins] == [None, True]
    assert "n/a" in pinstext.preflight(found)


def test_pins_in_each_other_and_under_other_commits(toy: Repository, cache: Path) -> None:
    inner = change(toy, "inner", "return 1", "return 10")
    outer = change(toy, "outer", "return 2", "return 20", start="inner")
    squashed = change(toy, "squashed", "return 3", "return 30")
    change(toy, "main", "return 3", "return 30", start="main")
    toy.replace("README", "a toy", "the toy")
    again = change(toy, "picked", "return 1", "return 10", start="main")
    stacked = build(toy, inner, outer, squashed, again, inner, ref="main")
    found = check_pins("b", stacked, cache)
    assert set(kinds(found.findings)) >= {
        ("contained", (1, 2)),
        ("contained", (3,)),
        ("contained", (4, 1)),
        ("contained", (5, 1)),
    }
    texts = {one.pins: one.text for one in found.findings if one.kind == "contained"}
    assert "has it in its past" in texts[1, 2]
    assert "the base has its changes already" in texts[3,]
    assert "under other commits" in texts[4, 1]
    assert "is the same commit" in texts[5, 1]


def test_pins_from_a_newer_main_drag_it_in(toy: Repository, cache: Path) -> None:
    toy.branch("main", "v1")
    for number in range(4):
        toy.commit_files("work", {f"work{number}": "work\n"})
    toy.branch("feature", "main")
    pin = toy.commit_files("feature", {"feature": "feature\n"})
    found = check_pins("b", build(toy, pin), cache)
    assert kinds(found.findings) == [("diverged", (1,))]
    assert "4 of the 5 commits" in found.findings[0].text
    assert "heads/main" in found.findings[0].text
    assert check_pins("b", build(toy, pin, ref="main"), cache).findings == []


def test_pins_that_share_an_unseen_ancestor(toy: Repository, cache: Path) -> None:
    toy.branch("hidden", "v1")
    common = toy.commit_files("hidden", {"hidden": "hidden\n"})
    one = change(toy, "one", "return 1", "return 10", start="hidden")
    two = change(toy, "two", "return 2", "return 20", start="hidden")
    toy.git("checkout", "--quiet", "main")
    for number, (name, commit) in enumerate({"one": one, "two": two}.items(), start=1):
        toy.pull(number, commit)
        toy.forget(name)
    toy.forget("hidden")
    found = check_pins("b", build(toy, Pin(commit=one, pull=1), Pin(commit=two, pull=2)), cache)
    assert kinds(found.findings) == [("diverged", (1, 2))]
    assert f"both bring 1 commit up to {common[:12]}" in found.findings[0].text


def test_what_merges_but_does_not_compile_is_found_with_its_partner(
    toy: Repository, cache: Path
) -> None:
    toy.branch("rename", "v1")
    text = (toy.folder / "main.c").read_text()
    toy.commit_files(
        "rename", {"main.c": text.replace("two", "zwei"), "toy.h": HEADER.replace("two", "zwei")}
    )
    rename = toy.head()
    toy.branch("caller", "v1")
    part = '#include "toy.h"\nint part(void) {\n    return two();\n}\n'
    caller = toy.commit_files("caller", {"part.c": part})
    toy.branch("broken", "v1")
    broken = toy.commit_files("broken", {"part_b.c": "int part_b(void) { return nothing; }\n"})
    toy.branch("fine", "v1")
    fine = toy.commit_files("fine", {"part_f.c": "int part_f(void) {\n    return 4;\n}\n"})
    stacked = build(toy, rename, caller, broken, fine)
    assert check_pins("b", stacked, cache).findings == []
    found = check_pins("b", stacked, cache, compiling=True).findings
    assert kinds(found) == [("does not compile", (2, 1)), ("does not compile", (3,))]
    assert "compiles on the base, but not together with pin 1" in found[0].text
    assert "part.c" in found[0].text
    assert "does not compile: " in found[1].text
    assert "nothing" in found[1].text


def test_a_base_by_commit_tells_where_its_tag_went(toy: Repository, cache: Path) -> None:
    pin = change(toy, "one", "return 1", "return 10")
    base = toy.git("rev-parse", "v1")
    assert check_pins("b", build(toy, pin, commit=base), cache).findings == []
    toy.git("tag", "--force", "v1", pin)
    found = check_pins("b", build(toy, pin, commit=base), cache)
    assert ("moved", (0,)) in kinds(found.findings)


def test_an_unreachable_repository_is_told_and_the_rest_is_checked(
    toy: Repository, cache: Path, tmp_path: Path
) -> None:
    first = change(toy, "one", "return 1", "return 10")
    clash = change(toy, "two", "return 1", "return 11")
    stacked = build(toy, first, clash, commit=toy.git("rev-parse", "v1"))
    assert kinds(check_pins("b", stacked, cache).findings) == [("conflict", (1, 2))]
    toy.folder.rename(tmp_path / "away")
    found = check_pins("b", stacked, cache).findings
    assert kinds(found) == [("conflict", (1, 2)), ("unavailable", (1, 2))]
