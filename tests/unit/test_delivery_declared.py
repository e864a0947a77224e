"""What a study declares against what a driver checks by itself, and the hints of our kernels."""

import pytest

from coldbench.study.treatment import Expected
from tests.unit.driver_outputs import workload
from tests.unit.test_delivery import EAGER, LAZY, failed, judge, log

KERNELS = {
    "gather": workload("gather", trace={"zipf": {"exponent": 1, "count": 2}}),
    "stream": workload("stream"),
}


def declared(**settings):
    return Expected.model_validate({"effective": settings})


# --- settings that a study declares ---------------------------------------------------------------


def test_a_declared_setting_takes_the_place_of_the_driver_s_check():
    auto = ["--lazy-mode", "auto"]
    assert failed(judge(auto, EAGER, table=None)) == ["lazy auto"]
    known = judge(auto, EAGER, table=None, expect=declared(lazy="off"))
    assert known.delivered == {"effective lazy": True}
    # and is itself held: what the study says is not what was
    wrong = judge(auto, EAGER, table=None, expect=declared(lazy="on"))
    assert wrong.reason == "effective lazy: expected on, seen off"
    other_way = judge(auto, LAZY, expect=declared(lazy="off"))
    assert failed(other_way) == ["effective lazy"]


@pytest.mark.parametrize(("stderr", "args"), [(LAZY, "auto"), (EAGER, "auto"), (EAGER, "on")])
def test_a_setting_left_open_is_delivered_whatever_it_is(stderr, args):
    found = judge(["--lazy-mode", args], stderr, table=None, expect=declared(lazy="*"))
    assert found.reason == ""
    assert found.delivered["effective lazy"] is True
    assert found.effective["lazy"] == (
        "off" if stderr is EAGER else ["per_layer_token_embd.weight"]
    )


def test_a_declared_setting_leaves_checks_of_others_alone():
    args = ["--lazy-mode", "auto", "--load-mode", "mmap", "-t", "4"]
    lost = judge(args, LAZY, effective={"threads": 2}, expect=declared(lazy="*"))
    assert "lazy auto" not in lost.delivered
    assert "threads: expected 4, seen 2" in lost.reason
    assert "load mode mmap: expected mmap, seen none" in lost.reason


def test_an_override_that_lazy_reading_undoes_can_be_declared():
    args = ["-lzm", "on", "-ot", "per_layer=RPC0"]
    deep = log(LAZY) + "0.00.500.000 D set_abort_callback: call\n"
    assert failed(judge(args, deep)) == ["-ot per_layer"]
    found = judge(args, deep, expect=declared(lazy="on", overrides="*"))
    assert found.reason == ""
    assert found.delivered == {
        "effective lazy": True,
        "effective overrides": True,
        "madvise": True,
    }


def test_what_is_declared_of_one_state_overrides_in_it_alone():
    wanted = Expected.model_validate({"warm": {"effective": {"lazy": "off"}}})
    args = ["--lazy-mode", "auto"]
    assert failed(judge(args, EAGER, table=None, expect=wanted, state="warm")) == []
    assert failed(judge(args, EAGER, table=None, expect=wanted, state="cold")) == ["lazy auto"]


# --- hints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_hints_that_the_kernel_took_are_delivered(kernel):
    found = judge(driven=KERNELS[kernel], effective={"hints": 40, "hint_errors": 0})
    assert found.delivered == {"hints": True}
    assert found.reason == ""


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_refused_hint_is_not_delivered_and_tells_the_first(kernel):
    said = {"hints": 40, "hint_errors": 3, "hint_error": "madvise(MADV_WILLNEED): Invalid argument"}
    found = judge(driven=KERNELS[kernel], effective=said)
    assert found.delivered == {"hints": False}
    assert found.reason == (
        "hints: expected advice that the kernel takes, "
        "seen 3 of 40 refused (madvise(MADV_WILLNEED): Invalid argument)"
    )


@pytest.mark.parametrize("said", [{}, {"hints": 0}, {"hints": 0, "hint_errors": 0}])
def test_a_strategy_without_hints_has_none_to_deliver(said):
    assert judge(driven=KERNELS["gather"], effective=said).delivered == {}


def test_a_kernel_is_judged_by_no_flag_of_an_engine_and_by_what_is_declared():
    args = ["-lzm", "on", "-ngl", "99"]
    found = judge(
        args,
        driven=KERNELS["stream"],
        effective={"policy": "mmap", "hints": 1, "hint_errors": 0, "buffer_count": 2},
        expect=declared(policy="scheduled", buffer_count="2"),
    )
    assert failed(found) == ["effective policy"]
    assert found.reason == "effective policy: expected scheduled, seen mmap"
    assert found.effective["buffer_count"] == 2


def test_hints_of_other_programs_are_their_own_affair():
    command = workload("command", program="x", metrics={"a": {"regex": "(.)"}})
    assert judge(driven=command, effective={"hints": 4, "hint_errors": 4}).delivered == {}
