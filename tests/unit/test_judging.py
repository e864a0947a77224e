"""The order of outcomes, each with a run that has it."""

from typing import Any

import pytest

from coldbench.measure.delivery import Printed
from coldbench.measure.judging import judged
from coldbench.records import Exit, Io, Memory, Residency, Run
from coldbench.study.specs import Arm
from coldbench.study.treatment import Expected, Observed

from .driver_outputs import workload
from .fabricated_runs import fabricated_run

MIB = 2**20
COMMAND = workload("command", program="engine", metrics={"a": {"regex": "(.)"}})
CERTIFICATE = {
    "state": "cold",
    "files": [{"bytes": 10 * MIB, "filesystem": "ext4", "holes_bytes": 0}],
}
SAYS_NO = Expected(no_log=("oops",))


def outcome(*, arm: Arm | None = None, printed: str = "", **facts: Any) -> Run:
    """Judge a run that is as it should be but for `facts`."""
    given = {"unprimed": "", "primed_bytes": None, "budget_enforced": None}
    given |= {"disturbed_settings": ""}
    given |= {name: facts.pop(name) for name in list(facts) if name in given}
    run = fabricated_run(
        "arm",
        1,
        **{
            "certificate": CERTIFICATE,
            "before": Residency(files={"m": 0}),
            "after": Residency(files={"m": 10 * MIB}),
            "read": 10 * MIB,
            "metrics": {"a": 1.0},
            **facts,
        },
    )
    return judged(
        run,
        arm or Arm(name="arm", build="b"),
        COMMAND,
        build={"programs": {}, "libraries": {}},
        model={"bytes": 10 * MIB},
        measured=Printed("", printed),
        probe=None,
        **given,
    )


def test_a_run_that_is_all_it_was_meant_to_be_is_ok() -> None:
    run = outcome(arm=Arm(name="arm", build="b", expect=SAYS_NO))
    assert (run.status, run.reason) == ("ok", "")
    assert run.delivered == {"no log oops": True}


def test_a_kill_by_the_budget_is_a_result_with_what_was_reached() -> None:
    run = outcome(
        status="failed",
        reason="killed (SIGKILL): out of memory?",
        exit=Exit(ended="signal", signal=9),
        memory=Memory(peak_rss_bytes=61 * MIB, budget_bytes=64 * MIB, cgroup_oom_kills=1),
        io=Io(read_bytes=12 * MIB),
    )
    assert run.status == "over budget"
    assert run.reason == (
        "killed: out of memory under a 64 MiB budget (peak RSS 61 MiB, 12 MiB read)"
    )


def test_page_cache_that_fills_the_group_is_not_out_of_memory() -> None:
    full = Memory(budget_bytes=64 * MIB, cgroup_peak_bytes=64 * MIB, cgroup_oom_kills=0)
    assert outcome(memory=full, budget_enforced=True).status == "ok"


def test_a_budget_that_was_not_enforced_is_not_delivered() -> None:
    run = outcome(memory=Memory(budget_bytes=64 * MIB), budget_enforced=False)
    assert run.status == "not delivered"
    assert run.reason == "its budget of 64 MiB was not in force"


def test_a_time_limit_says_what_was_reached() -> None:
    run = outcome(
        status="failed",
        reason="did not exit: time limit 600 s",
        exit=Exit(ended="time limit", signal=9),
        memory=Memory(peak_rss_bytes=None),
        io=Io(read_bytes=3 * MIB),
    )
    assert run.reason == "did not exit: time limit 600 s (peak RSS n/a, 3 MiB read)"


def test_a_cold_run_that_found_pages_was_not_cold() -> None:
    run = outcome(before=Residency(files={"m": 4 * MIB}))
    assert run.status == "not cold"
    assert run.metrics == {"a": 1.0}, "what it measured stays in the raw record"


@pytest.mark.parametrize(("machine", "own", "ok"), [(8192, 64, False), (64, 8192, True)])
def test_a_warm_run_may_read_one_window_of_the_read_ahead_that_it_ran_under(
    machine: int, own: int, ok: bool
) -> None:
    run = outcome(
        state="warm",
        before=Residency(files={"m": 6 * MIB}),
        after=Residency(files={"m": 10 * MIB}),
        read=4 * MIB,
        primed_bytes=6 * MIB,
        host={"disk_read_ahead_kb": machine},
        settings={"read_ahead_kb": own},
    )
    assert (run.status == "ok") is ok, run.reason


def test_a_warm_run_whose_priming_failed_or_whose_pages_went_was_not_warm() -> None:
    warm = {"state": "warm", "before": Residency(files={"m": 10 * MIB}), "read": 0}
    assert outcome(**warm, primed_bytes=10 * MIB).status == "ok"
    run = outcome(**warm, primed_bytes=10 * MIB, unprimed="exit status 3")
    assert (run.status, run.reason) == ("not warm", "its priming run: exit status 3")
    gone = warm | {"before": Residency(files={"m": MIB}), "read": 9 * MIB}
    assert outcome(**gone, primed_bytes=10 * MIB).status == "not warm"


@pytest.mark.parametrize(
    "first",
    [
        {"status": "void", "reason": "exit 0 without a result"},
        {"before": Residency(files={"m": 4 * MIB})},
        {"budget_enforced": False},
        {"disturbed_settings": "read_ahead_kb was 32 after the run, not 64"},
    ],
)
def test_what_is_found_first_is_the_outcome(first: dict[str, Any]) -> None:
    arm = Arm(name="arm", build="b", expect=SAYS_NO, budget=64 * MIB)
    alone = outcome(arm=arm, **first)
    both = outcome(arm=arm, printed="oops", **first)
    assert (both.status, both.reason) == (alone.status, alone.reason)
    assert outcome(arm=arm, printed="oops").reason.startswith("no log oops: ")


def test_an_expectation_of_one_cache_state_is_not_held_against_the_other() -> None:
    arm = Arm(name="arm", build="b", expect=Expected(warm=Observed(no_log=("oops",))))
    assert outcome(arm=arm, printed="oops").status == "ok"


def test_identity_runs_are_not_asked_for_their_treatment() -> None:
    arm = Arm(name="arm", build="b", expect=SAYS_NO)
    assert outcome(arm=arm, printed="oops", state="unmeasured").status == "ok"
