"""The identity check passes only what it has compared, and can itself fail."""

from typing import Any

import pytest

from coldbench.analysis.identity import IdentityRun, judge
from coldbench.common.hashing import text_md5
from coldbench.drivers.completion import CompletionDriver

from .driver_outputs import REAL, output, workload
from .fabricated_runs import fabricated_run


def check(arm: str, text: str | None, variant: str = "", group: str = "", **fields: Any) -> Any:
    run = None
    if text is not None:
        run = fabricated_run(arm, 0, state="unmeasured", digest=text, **fields)
    return IdentityRun("model", arm, (group,), variant, run)


def controls(arm: str, text: str, mutant: str, group: str = "") -> list[IdentityRun]:
    return [check(arm, text, "repeat", group), check(arm, mutant, "mutant", group)]


def reasons(runs: list[IdentityRun]) -> dict[str, str]:
    return {arm: cell.reason for (_, arm), cell in judge(runs).items()}


def test_equal_texts_with_sound_controls_pass() -> None:
    cells = judge([check("a", "x"), check("b", "x"), *controls("a", "x", "y")])
    assert all(cell.ok and cell.md5 == "x" and not cell.reason for cell in cells.values())
    assert set(cells) == {("model", "a"), ("model", "b")}


def test_differing_texts_fail_every_arm_and_name_the_sides() -> None:
    found = reasons([check("a", "x"), check("b", "z"), check("c", "x"), *controls("a", "x", "y")])
    assert set(found) == {"a", "b", "c"}
    assert set(found.values()) == {"texts differ: x of a, c; z of b"}


def test_an_arm_that_failed_fails_alone() -> None:
    found = reasons(
        [
            check("a", "x"),
            check("b", "", status="failed", reason="exit status 3"),
            check("c", None),
            *controls("a", "x", "y"),
        ]
    )
    assert found["a"] == ""
    assert found["b"] == "its identity run failed: exit status 3"
    assert found["c"] == "its identity run is missing"


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (controls("a", "z", "y"), "gave two texts for one prompt"),
        (controls("a", "x", "x"), "a mutated prompt gave the same text"),
        (controls("a", "x", "y")[:1], "its mutant is missing"),
        (controls("a", "x", "y")[1:], "its repeat is missing"),
        (
            [check("a", "", "repeat", status="void", reason="no text"), controls("a", "x", "y")[1]],
            "its repeat void: no text",
        ),
    ],
)
def test_a_check_whose_controls_fail_is_void(extra: list[IdentityRun], reason: str) -> None:
    found = reasons([check("a", "x"), check("b", "x"), *extra])
    assert all(reason in text for text in found.values())


def test_groups_are_judged_apart() -> None:
    found = judge(
        [
            check("a", "x", group="on"),
            *controls("a", "x", "y", "on"),
            check("b", "z", group="off"),
            *controls("b", "z", "z", "off"),
        ]
    )
    assert found["model", "a"].ok
    assert not found["model", "b"].ok


# --- outputs of the engine, through its driver ---------------------------------------------------

WORK = workload("llama-completion", prompt="Once upon a time", tokens=24)
STDOUT = (REAL / "completion.stdout").read_bytes()
STDERR = (REAL / "completion.stderr").read_text(encoding="utf-8")


def printed(arm: str, stdout: bytes, stderr: str = STDERR, variant: str = "") -> Any:
    result = CompletionDriver().read(WORK, output(stdout, stderr))
    digest = text_md5(result.text) if result.text else None
    return check(arm, digest or "", variant, status=result.status, reason=result.reason)


def sound() -> list[IdentityRun]:
    other = STDOUT.replace(b"the", b"one")
    assert other != STDOUT
    return [
        printed("a", STDOUT),
        printed("a", STDOUT, variant="repeat"),
        printed("a", other, variant="mutant"),
    ]


@pytest.mark.parametrize(
    ("stdout", "stderr", "reason"),
    [
        (STDOUT[:-12], STDERR, "texts differ"),
        (STDOUT[:40], STDERR.split("common_perf_print")[0], "void"),
        (b"", STDERR, "void: no text"),
        (b"\n\n", STDERR, "void: no text"),
        (b"error: failed to load model\n", "", "void"),
        (b"", "error: failed to load model\n", "void: no text"),
        (STDOUT.replace(b"a", b"e", 1), STDERR, "texts differ"),
        (STDOUT, STDERR, ""),
    ],
    ids=["cut", "cut log too", "empty", "line ends", "error", "error log", "letter", "sound"],
)
def test_every_spoilt_output_is_caught(stdout: bytes, stderr: str, reason: str) -> None:
    found = reasons([*sound(), printed("b", stdout, stderr)])
    assert reason in found["b"]
    assert bool(found["b"]) == bool(reason)


def test_the_same_output_two_hundred_times_never_fails() -> None:
    found = reasons([*sound(), *(printed(f"b{number}", STDOUT) for number in range(200))])
    assert set(found.values()) == {""}
    assert len(found) == 201


# --- texts that are not the same each time --------------------------------------------------------


def counted(arm: str, texts: str, mutant: str | None = None, **fields: Any) -> list[IdentityRun]:
    """One letter a text."""
    names = ["", *(f"text {number}" for number in range(2, len(texts) + 1))]
    runs = [check(arm, text, name, **fields) for text, name in zip(texts, names, strict=True)]
    return runs + ([check(arm, mutant, "mutant")] if mutant else [])


def test_a_rate_like_the_first_arms_own_passes_and_is_shown() -> None:
    cells = judge(
        [*counted("a", "x" * 20 + "yyzz", "m"), *counted("b", "yx" * 2 + "x" * 18 + "ww")]
    )
    for arm, equal in (("a", 20), ("b", 20)):
        cell = cells["model", arm]
        assert (cell.ok, cell.md5, cell.reason) == (True, "x", "")
        assert cell.rate is not None
        assert (cell.rate.equal, cell.rate.runs) == (equal, 24)


@pytest.mark.parametrize(("equal", "ok"), [(24, True), (18, True), (17, False), (0, False)])
def test_an_arm_that_gives_the_text_too_rarely_fails_alone(equal: int, ok: bool) -> None:
    texts = "x" * equal + "z" * (24 - equal)
    found = reasons([*counted("a", "x" * 24, "m"), *counted("b", texts), *counted("c", "x" * 24)])
    assert (found["a"], found["c"]) == ("", "")
    assert (found["b"] == "") is ok
    if not ok:
        assert found["b"].startswith(
            f"gave the text in {equal} of 24 runs, against 24 of 24 of a (p"
        )


def test_a_steadier_arm_is_no_worse() -> None:
    found = reasons([*counted("a", "x" * 15 + "y" * 9, "m"), *counted("b", "x" * 24)])
    assert found == {"a": "", "b": ""}


@pytest.mark.parametrize("length", [5, 24])
def test_the_least_number_of_repeats_tells_never_from_always(length: int) -> None:
    found = reasons([*counted("a", "x" * length, "m"), *counted("b", "y" * length)])
    assert found["a"] == ""
    assert f"in 0 of {length} runs" in found["b"]


def test_a_check_by_rates_that_could_not_fail_is_void() -> None:
    restless = [*counted("a", "xxabcdefghijklmnopqrstuv", "w"), *counted("b", "x" * 24)]
    assert set(reasons(restless).values()) == {
        "the check is void: a gave its commonest text in 2 of 24 runs, too rarely to tell other "
        "arms from it; raise repeats"
    }
    same = [*counted("a", "x" * 24, "y"), *counted("b", "x" * 23 + "y")]
    assert set(reasons(same).values()) == {"the check is void: a mutated prompt gave the same text"}
    none = [*counted("a", "x" * 24), *counted("b", "x" * 24)]
    assert set(reasons(none).values()) == {"the check is void: its mutant is missing"}


def test_an_arm_one_of_whose_texts_failed_fails_alone() -> None:
    spoilt = counted("b", "x" * 23)
    spoilt.append(check("b", "", "text 24", status="failed", reason="exit status 3"))
    found = reasons([*counted("a", "x" * 24, "m"), *spoilt])
    assert found == {"a": "", "b": "one of its identity runs failed: exit status 3"}


@pytest.mark.parametrize(("texts", "ok"), [("xxx", True), ("xxy", True), ("yyz", False)])
def test_measured_runs_are_held_to_the_same_rate(texts: str, ok: bool) -> None:
    measured = [
        fabricated_run("b", number, model="model", digest=d) for number, d in enumerate(texts)
    ]
    runs = [*counted("a", "x" * 24, "m"), *counted("b", "x" * 22 + "yy")]
    cell = judge(runs, measured)["model", "b"]
    assert cell.ok is ok
    assert cell.reason.startswith("measured runs gave the text in 0 of 3 runs") is not ok
