"""What a study declares that its runs must show."""

import pytest
from pydantic import ValidationError

from coldbench.records import Io, Residency
from coldbench.study.plan import Plan
from coldbench.study.treatment import Expect, Expected, within

from .test_delivery import LAZY, MIB, failed, judge


def test_declared_expectations_are_judged_one_by_one():
    wanted = Expected(
        log=(r"lazy read enabled$", "^no such line"),
        no_log=("Falling back", "n_ctx +="),
        effective={"lazy": "on", "load_mode": "mmap", "mlock": "on"},
        buffers=("CPU_Mapped", "RPC0"),
        bounds={"major_faults": "< 3", "read_bytes": ">= 642MiB", "table_residency": "< 10%"},
    )
    found = judge([], LAZY, expect=wanted, after=Residency(table_bytes=MIB))
    assert failed(found) == [
        "log ^no such line",
        "no log n_ctx +=",
        "effective load_mode",
        "effective mlock",
        "buffer RPC0",
        "bound major_faults",
    ]
    for words in (
        "no log n_ctx +=: expected no line that matches, seen n_ctx",
        "effective load_mode: expected mmap, seen none",
        "effective mlock: expected on, seen n/a",
        "buffer RPC0: expected RPC0, seen CPU, CPU_Mapped",
        "bound major_faults: expected < 3, seen 3",
    ):
        assert words in found.reason


def test_a_remote_buffer_is_named_without_its_address():
    stderr = "load_tensors: RPC0[127.0.0.1:50052] model buffer size = 7.00 MiB\n"
    assert failed(judge([], stderr, expect=Expected(buffers=("RPC0",)))) == []


def test_expectations_of_a_state_hold_in_it_alone():
    wanted = Expected.model_validate({"cold": {"bounds": {"major_faults": "< 500"}}})
    faults = Io(major_faults=9864)
    cold = judge([], LAZY, expect=wanted, io=faults)
    assert cold.reason == "bound major_faults: expected < 500, seen 9,864"
    assert failed(judge([], LAZY, expect=wanted, io=faults, state="warm")) == []


def test_a_counter_that_could_not_be_had_keeps_no_bound():
    wanted = Expected(bounds={"major_faults": "< 500"})
    lost = judge([], LAZY, expect=wanted, io=Io())
    assert lost.reason == "bound major_faults: expected < 500, seen n/a"


@pytest.mark.parametrize(
    ("quantity", "bound", "value", "kept"),
    [
        ("major_faults", "< 100", 100, False),
        ("major_faults", "<=100", 100, True),
        ("table_residency", "> 95%", 0.96, True),
        ("table_residency", "< 0.5%", 0.004, True),
        ("anon_at_peak_bytes", ">= 1.5MiB", 1.5 * MIB, True),
        ("read_bytes", "< 1KiB", 1024, False),
    ],
)
def test_bounds_are_kept_or_not(quantity, bound, value, kept):
    assert within(quantity, bound, value) is kept


@pytest.mark.parametrize(
    "bounds",
    [
        {"major_faults": "100"},
        {"major_faults": "< 10%"},
        {"table_residency": "< 0.1"},
        {"read_bytes": "< 100"},
        {"read_bytes": "== 1GiB"},
        {"faults": "< 1"},
    ],
)
def test_a_bound_that_is_none_is_refused(bounds):
    with pytest.raises(ValidationError):
        Expected(bounds=bounds)


def test_expectations_of_levels_add_up_and_a_build_s_own_come_last():
    level = Expect.model_validate(
        {
            "log": "one",
            "bounds": {"major_faults": "< 9"},
            "for_build": {"new": {"log": ["two"], "cold": {"buffers": "CPU"}}},
        }
    )
    assert level.on("old") == Expected(log=("one",), bounds={"major_faults": "< 9"})
    other = Expected.model_validate(
        {"bounds": {"major_faults": "> 9"}, "cold": {"buffers": "RPC0"}}
    )
    both = level.on("new").merged(other)
    assert both.log == ("one", "two")
    assert both.bounds == {"major_faults": "> 9"}
    assert both.in_state("cold").buffers == ("CPU", "RPC0")
    assert both.in_state("warm").buffers == ()


STUDY = """\
models: {toy: {source: {path: toy.gguf}}}
builds: {new: {source: {binaries: new}}, old: {source: {binaries: old}}}
workloads: {run: {driver: llama-batched-bench, args: [-npp, 512, -ntg, 128, -npl, 1]}}
factors:
  lazy:
    on:
      intent: {lazy: on}
      expect: {effective: {lazy: on}, for_build: {new: {bounds: {major_faults: "< 500"}}}}
    off: {intent: {lazy: off}, for_build: {old: [--eager]}}
  mode:
    none: {intent: {load_mode: none}}
arms: {matrix: {build: [new, old], lazy: [on, off], mode: none}}
blocks: {cold: 3}
"""


def test_intents_and_expectations_of_the_levels_come_together_in_an_arm(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    arms = {arm.name: arm for arm in Plan(path).arms}
    assert arms["new-lazy-on-mode-none"].intent.given == {"lazy": "on", "load_mode": "none"}
    assert arms["new-lazy-on-mode-none"].expect.bounds == {"major_faults": "< 500"}
    assert arms["old-lazy-on-mode-none"].expect == Expected(effective={"lazy": "on"})
    # what a level gives a build of its own replaces all that it adds otherwise
    assert arms["new-lazy-off-mode-none"].intent.given == {"lazy": "off", "load_mode": "none"}
    assert arms["old-lazy-off-mode-none"].intent.given == {"load_mode": "none"}
    assert arms["old-lazy-off-mode-none"].args == ("--eager",)
    assert arms["old-lazy-off-mode-none"].expect == Expected()
    twins = [arm for arm in arms.values() if arm.twin_of is not None]
    assert all(arm.expect == arms[arm.twin_of].expect for arm in twins)
