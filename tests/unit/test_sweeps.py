"""Sweeps: one entry stands for many, the file keeps its lines, and slips are told."""

import re
import sys
from pathlib import Path
from types import FrameType

import pytest

from coldbench.cli import main
from coldbench.common.errors import ColdbenchError
from coldbench.drivers.registry import check_study
from coldbench.publish.forecast import forecast
from coldbench.study.plan import Plan
from coldbench.study.reading import read_study

STUDY = """\
models:
  "m-{size}":
    sweep: {size: [10, 20]}
    source: {standin: {architecture: llama, body: "{size}MiB"}}
builds:
  old: {source: {binaries: old}}
  new: {source: {binaries: new}}
workloads:
  "pp{n}-u{u}":
    sweep: {n: [64, 256], u: [32, 64]}
    driver: llama-bench
    args: [-p, "{n}", -ub, "{u}", "{model}"]
factors:
  threads:
    "{t}": {sweep: {t: [1, 2, 4]}, args: [-t, "{t}"]}
    most: [-t, 64]
  lazy: {on: {intent: {lazy: on}}, off: {intent: {lazy: off}}}
arms:
  matrix: {build: "*", threads: "*", lazy: on}
  name: "{build}-{threads}"
comparisons:
  "new-{t}":
    sweep: {t: [1, 4]}
    treatment: "new-{t}"
    control: "old-{t}"
blocks: {cold: 3}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_each_combination_is_an_entry_of_its_own(tmp_path: Path) -> None:
    plan = Plan(write(tmp_path, STUDY))
    assert [*plan.models] == ["m-10", "m-20"]
    assert [model.source.standin.body for model in plan.models.values()] == [10 << 20, 20 << 20]  # type: ignore[union-attr]
    assert {name: work.args for name, work in plan.workloads.items()} == {
        f"pp{n}-u{u}": ("-p", n, "-ub", u, "{model}") for n in ("64", "256") for u in ("32", "64")
    }
    # In the file's order, the entry in its place among the others.
    assert [arm.name for arm in plan.arms if arm.twin_of is None] == [
        f"{build}-{threads}" for build in ("old", "new") for threads in ("1", "2", "4", "most")
    ]
    assert [arm.args for arm in plan.arms][:4] == [("-t", t) for t in ("1", "2", "4", "64")]
    assert {(claim.name, claim.treatment, claim.control) for claim in plan.claims} == {
        ("new-1", "new-1", "old-1"),
        ("new-4", "new-4", "old-4"),
    }


def test_a_sweep_is_what_it_would_be_written_out(tmp_path: Path) -> None:
    swept = 'factors: {t: {"{t}": {sweep: {t: [1, 2]}, args: [-t, "{t}"]}}}'
    written = "factors: {t: {1: [-t, 1], 2: [-t, 2]}}"
    head = "models: {m: {source: {path: m.gguf}}}\nbuilds: {b: {source: {binaries: b}}}\n"
    tail = "\nworkloads: {w: {driver: llama-bench}}\nblocks: {cold: 3}\n"
    tail += 'arms: {matrix: {build: b, t: "*"}}\n'
    first, second = (
        Plan(write(tmp_path, f"{head}{factors}{tail}")) for factors in (swept, written)
    )
    assert first.arms == second.arms
    assert first.block("m", "w", 1) == second.block("m", "w", 1)


def test_a_scale_has_sweeps_of_its_own(tmp_path: Path) -> None:
    text = (
        "scale: one\n"
        "scales:\n"
        "  one:\n"
        '    workloads: {"p{n}": {sweep: {n: [1, 2]}, driver: llama-bench, args: [-p, "{n}"]}}\n'
        "  two:\n"
        '    workloads: {"p{n}": {sweep: {n: [3]}, driver: llama-bench, args: [-p, "{n}"]}}\n'
        "models: {m: {source: {path: m.gguf}}}\n"
        "builds: {b: {source: {binaries: b}}}\n"
        "arms: {matrix: {build: b}}\n"
        "blocks: {cold: 3}\n"
    )
    assert [*Plan(write(tmp_path, text)).workloads] == ["p1", "p2"]
    other = text.replace("scale: one", "scale: two")
    assert [*Plan(write(tmp_path, other)).workloads] == ["p3"]
    slip = text.replace("[3]}, driver: llama-bench, args", "[3]}, driver: llama-bench, arg")
    with pytest.raises(ColdbenchError, match=r":6: unknown key scales\.two\.workloads\.p3\.arg; "):
        read_study(write(tmp_path, slip))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "sweep: {size: [10, 20]}",
            "sweep: {size: []}",
            "3: models.m-{size}.sweep.size: needs a list",
        ),
        (
            "sweep: {size: [10, 20]}",
            "sweep: {size: [[1]]}",
            "3: models.m-{size}.sweep.size: needs a list",
        ),
        ("sweep: {size: [10, 20]}", "sweep: 10", "3: models.m-{size}.sweep: needs a mapping"),
        ("sweep: {size: [10, 20]}", "sweep: {}", "3: models.m-{size}.sweep: needs a mapping"),
        (
            "sweep: {size: [10, 20]}",
            "sweep: {size: [10, 10]}",
            "3: models.m-{size}.sweep.size: a value stands twice",
        ),
        (
            "sweep: {size: [10, 20]}",
            "sweep: {si ze: [10]}",
            "3: models.m-{size}.sweep.si ze: names of sweeps",
        ),
        (
            "u: [32, 64]}",
            "u: [32, 64], x: [1]}",
            "10: workloads.pp{n}-u{u}.sweep: the entry's name needs {x}",
        ),
        (
            'args: [-p, "{n}", -ub, "{u}"',
            'args: [-p, "{n}", -ub, 64',
            "10: workloads.pp{n}-u{u}.sweep: no text of the entry has {u}",
        ),
        (
            'args: [-p, "{n}", -ub, "{u}"',
            'args: [-p, "{n}", -ub, "{u}", -b, "{nn}"',
            "10: workloads.pp{n}-u{u}.sweep: {nn} is not swept here; did you mean n?",
        ),
        (
            'args: [-p, "{n}", -ub, "{u}"',
            'environment: {"LLAMA_{u}": "1"}\n    args: [-p, "{n}", -ub, "{u}"',
            "10: workloads.pp{n}-u{u}.sweep: {u} stands in a key; only in values",
        ),
        (
            "    most: [-t, 64]",
            "    2: [-t, 64]",
            "15: factors.threads.2: two entries are called 2",
        ),
        (
            "u: [32, 64]}",
            "u: [3/2, 64]}",
            "9: workloads.pp64-u3/2: 'pp64-u3/2' does not have the form",
        ),
        (
            'treatment: "new-{t}"',
            'treatment: "now-{t}"',
            "24: comparisons.new-1.treatment: unknown arm 'now-1'",
        ),
        (
            'threads: "*"',
            'thread: "*"',
            "19: arms.matrix.thread: unknown factor 'thread'; did you mean threads?",
        ),
        (
            "size: [10, 20]",
            f"size: {list(range(1, 1002))}",
            "3: models.m-{size}.sweep: stands for 1001 entries",
        ),
    ],
)
def test_a_slip_is_told_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in STUDY
    with pytest.raises(ColdbenchError) as caught:
        Plan(write(tmp_path, STUDY.replace(old, new)))
    assert re.search(re.escape(f"study.yaml:{said}"), str(caught.value)), str(caught.value)


def calls(path: Path) -> int:
    """Return how many calls planning a study makes: the same each time, unlike seconds."""
    made = 0

    def count(_frame: FrameType, event: str, _function: object) -> None:
        nonlocal made
        made += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        plan = Plan(path)
        check_study(plan)
        forecast(plan)
    finally:
        sys.setprofile(None)
    return made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n: [64, 256], u: [32, 64]", "n: {}, u: [32]"),  # workloads
        ("sweep: {t: [1, 2, 4]}", "sweep: {t: {}}"),  # arms
    ],
    ids=["workloads", "arms"],
)
def test_planning_costs_grow_with_the_cells_and_not_with_their_square(
    tmp_path: Path, old: str, new: str
) -> None:
    text = STUDY.replace("most: [-t, 64]", "most: [-t, 999]").replace(', "{model}"', "")
    assert old in text

    def planned(values: int) -> int:
        swept = new.replace("{}", str([*range(1, values + 1)]))
        return calls(write(tmp_path, text.replace(old, swept)))

    planned(50)  # what the first call alone does is not counted
    fifty, hundred, two_hundred = map(planned, (50, 100, 200))
    # Twice the values more are twice the calls more; with their square it would be four times.
    assert two_hundred - hundred < 2.5 * (hundred - fifty)


def test_plan_tells_how_many_cells_a_sweep_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = STUDY.replace("n: [64, 256], u: [32, 64]", f"n: {list(range(1, 14))}, u: [32]")
    main(["plan", str(write(tmp_path, many))])
    # 2 models x 13 workloads x (8 arms and a twin)
    assert re.search(r"^cells +234 ", capsys.readouterr().out, re.MULTILINE)
