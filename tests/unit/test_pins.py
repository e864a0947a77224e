"""Stacks of pins: merged in order, recorded, built once."""

from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.builds import prepare_build
from coldbench.sources.pincheck import check_pins
from coldbench.study.builds import Pin
from tests.unit.toy_repository import Repository, build, change, output


def test_pins_are_merged_in_order_and_recorded(toy: Repository, cache: Path) -> None:
    first = change(toy, "one", "return 1", "return 10")
    second = change(toy, "three", "return 3", "return 30")
    toy.pull(7, second)
    base = toy.git("rev-parse", "v1")
    stacked = build(toy, Pin(commit=first, ref="one"), Pin(commit=second, pull=7))
    record = prepare_build("b", stacked, cache)
    assert output(record) == "10 2 30\n"
    source = record["source"]
    assert (source["commit"], source["tree"]) == (base, toy.git("rev-parse", "v1^{tree}"))
    assert [pin["commit"] for pin in source["pins"]] == [first, second]
    assert source["pins"][0] == {
        "commit": first,
        "ref": "one",
        "tree": toy.git("rev-parse", f"{first}^{{tree}}"),
        "files": 1,
        "insertions": 1,
        "deletions": 1,
    }
    assert source["pins"][1]["pull"] == 7
    toy.branch("by-hand", first)
    toy.git("merge", "--quiet", "-m", "merge", second)
    assert source["merged"] == {
        "tree": toy.git("rev-parse", "HEAD^{tree}"),
        "files": 1,
        "insertions": 2,
        "deletions": 2,
        "changes": [{"path": "main.c", "insertions": 2, "deletions": 2}],
    }
    assert record["tree"] == source["merged"]["tree"] == source["pins"][1]["tree"]


def test_patches_go_on_top_of_pins(toy: Repository, cache: Path, tmp_path: Path) -> None:
    pin = change(toy, "one", "return 1", "return 10")
    change(toy, "hundred", "return 10", "return 100", start="one")
    patch = tmp_path / "hundred.patch"
    patch.write_text(toy.git("diff", "one", "hundred") + "\n")
    patched = build(toy, pin).model_copy(update={"patches": (str(patch),)})
    record = prepare_build("b", patched, cache)
    assert output(record) == "100 2 3\n"
    assert record["base_tree"] == record["source"]["merged"]["tree"] != record["tree"]


def test_the_same_stack_is_the_same_bytes_everywhere(
    toy: Repository, cache: Path, tmp_path: Path
) -> None:
    pins = change(toy, "one", "return 1", "return 10"), change(toy, "two", "return 2", "return 20")
    here = prepare_build("b", build(toy, *pins), cache)
    there = prepare_build("b", build(toy, *pins), tmp_path / "another-cache")
    assert here["source"] == there["source"]
    assert here["content"] == there["content"]
    # The result is what is built, not the way to it: another order of pins is the same build.
    turned = prepare_build("b", build(toy, *reversed(pins)), cache)
    assert turned["programs"] == here["programs"]
    assert [pin["commit"] for pin in turned["source"]["pins"]] == [*reversed(pins)]


def test_builds_of_stacks_share_objects(toy: Repository, cache: Path) -> None:
    toy.branch("main", "v1")
    toy.commit_files("part", {"part.c": "int part(void) {\n    return 0;\n}\n"})
    pin = change(toy, "one", "return 1", "return 10", start="main")
    base = prepare_build("base", build(toy, ref="main"), cache)
    stacked = prepare_build("stacked", build(toy, pin, ref="main"), cache)
    lines = {name: Path(one["log"]).read_text() for name, one in (("b", base), ("s", stacked))}
    assert lines["b"].count("Building C object") == 2
    assert lines["s"].count("Building C object") == 1


def test_a_pin_of_a_fork_is_fetched_there(toy: Repository, cache: Path, tmp_path: Path) -> None:
    fork = Repository(tmp_path / "fork")
    fork.git("fetch", "--quiet", str(toy.folder), "refs/tags/v1:refs/tags/v1")
    commit = change(fork, "feature", "return 2", "return 20")
    stacked = build(toy, Pin(commit=commit, url=str(fork.folder), ref="feature"))
    assert output(prepare_build("b", stacked, cache)) == "1 20 3\n"
    assert check_pins("b", stacked, cache).findings == []
    with pytest.raises(ColdbenchError, match=rf"build b: pin 1 \({commit[:12]}\): .*/toy: has no"):
        prepare_build("b", build(toy, commit), tmp_path / "new")


def test_a_stack_that_does_not_merge_is_not_built(toy: Repository, cache: Path) -> None:
    first = change(toy, "one", "return 1", "return 10")
    clash = change(toy, "clash", "return 1", "return 11")
    match = r"build b: pin 2 .* does not merge onto v1 .* and the pins before it: main.c \(contents"
    with pytest.raises(ColdbenchError, match=match):
        prepare_build("b", build(toy, first, clash), cache)
    assert not (cache / "builds").exists()
    with pytest.raises(ColdbenchError, match=r"build b: pin 2 .* changes nothing on v1"):
        prepare_build("b", build(toy, first, first), cache)
    toy.git("checkout", "--quiet", "--orphan", "strange")
    with pytest.raises(ColdbenchError, match=r"pin 1 .* the whole tree \(no common history\)"):
        prepare_build("b", build(toy, toy.commit("strange")), cache)
