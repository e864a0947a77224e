"""What was in force by the engine's own log, and what others published, below the figures."""

from typing import Any

from coldbench.analysis.in_force import in_force
from coldbench.publish.markdown import markdown
from coldbench.records import Exit, Run
from coldbench.study.specs import PublishedTable

from .fabricated_runs import fabricated_run
from .test_matrix import grid, laid_out

LANE = ("gemma", "pp512")


def run(arm: str, block: int = 1, **effective: Any) -> Run:
    state = effective.pop("state", "cold")
    return fabricated_run(arm, block, state=state, effective=effective)


LAZY = {
    "lazy": ["b.weight", "per_layer_token_embd.weight"],
    "load_mode": "mmap",
    "threads": 2,
    "buffers": {"CPU_Mapped": 1543.5, "RPC0[127.0.0.1:1]": 2.0},
}
EAGER = {"lazy": "off", "load_mode": "mmap", "mlock": True, "threads": 2, "buffers": {}}


def test_settings_in_which_arms_differ_are_told_in_words() -> None:
    assert in_force([run("lazy", **LAZY), run("eager", **EAGER)]) == {
        LANE: {
            "lazy": {
                "lazy": "b, per_layer_token_embd",
                "mlock": "",
                "buffers": "CPU_Mapped 1,544, RPC0[127.0.0.1:1] 2",
            },
            "eager": {"lazy": "off", "mlock": "yes", "buffers": ""},
        }
    }


def test_settings_in_which_all_agree_are_left_out() -> None:
    same = {"load_mode": "mmap", "lazy": "off"}
    assert in_force([run("a", **same), run("b", **same)]) == {LANE: {"a": {}, "b": {}}}
    assert in_force([run("a", **same)]) == {LANE: {"a": {}}}
    assert in_force([run("a"), fabricated_run("b", 1, state="unmeasured", effective=same)]) == {}


def test_host_settings_are_told_where_an_arm_has_its_own() -> None:
    host = {"disk_read_ahead_kb": 8192, "transparent_hugepage": "madvise"}
    runs = [
        fabricated_run("own", 1, host=host),
        fabricated_run("short", 1, host=host, settings={"read_ahead_kb": 128}),
    ]
    assert in_force(runs) == {
        LANE: {"own": {"read_ahead_kb": "8192"}, "short": {"read_ahead_kb": "128"}}
    }
    text = document(runs, arms=("own", "short"))
    shown = grid(text, "In force, by the engine's own log and the kernel's files:")
    assert shown[2:] == [["own", "8192"], ["short", "128"]]


def test_only_runs_that_were_launched_tell_what_was_in_force() -> None:
    """One that was refused or not cold ran under nothing, the machine's own value included."""
    host = {"disk_read_ahead_kb": 8192, "transparent_hugepage": "madvise"}
    never = Exit(ended="not started")
    runs = [
        fabricated_run("short", 1, host=host, settings={"read_ahead_kb": 64}),
        fabricated_run("short", 2, host=host, status="not cold", exit=never),
        fabricated_run("odd", 1, host=host, status="refused", exit=never),
        fabricated_run("huge", 1, host=host, settings={"transparent_hugepage": "always"}),
    ]
    assert in_force(runs) == {
        LANE: {
            "short": {"read_ahead_kb": "64", "transparent_hugepage": "madvise"},
            "huge": {"read_ahead_kb": "8192", "transparent_hugepage": "always"},
        }
    }


def test_an_arm_whose_runs_disagree_tells_all_the_commonest_first() -> None:
    runs = [
        run("a", 1, lazy="off", offloaded="2/5"),
        run("a", 2, lazy=["t"], offloaded="5/5"),
        run("a", 3, lazy=["t"], offloaded="5/5", state="warm"),
        run("b", 1, lazy=["t"], offloaded="5/5"),
    ]
    assert in_force(runs) == {
        LANE: {
            "a": {"lazy": "t; off", "offloaded": "5/5; 2/5"},
            "b": {"lazy": "t", "offloaded": "5/5"},
        }
    }


def test_models_and_workloads_are_apart() -> None:
    runs = [
        fabricated_run("a", 1, model=model, workload=workload, effective={"lazy": value})
        for model, workload, value in (("m", "w", "off"), ("m", "v", ["t"]), ("n", "w", ["t"]))
    ]
    assert in_force(runs) == {("m", "w"): {"a": {}}, ("m", "v"): {"a": {}}, ("n", "w"): {"a": {}}}


# --- as Markdown ----------------------------------------------------------------------------------


def document(runs: list[Run], **more: Any) -> str:
    return markdown(laid_out(runs, settings=in_force(runs), **more))


def test_the_table_of_settings_follows_that_of_the_figures_arm_by_arm() -> None:
    eager = EAGER | {"buffers": {"CPU_Mapped": 90.25}}
    text = document([run("eager", **eager), run("lazy", **LAZY)])
    assert text.index("cold peak RSS") < text.index("In force")
    header, _, *rows = grid(text, "In force, by the engine's own log:")
    assert header == ["arm", "lazy", "mlock", "buffers, MiB"]
    assert rows == [
        ["lazy", "b, per_layer_token_embd", "", "CPU_Mapped 1,544, RPC0\\[127.0.0.1:1\\] 2"],
        ["eager", "off", "yes", "CPU_Mapped 90"],
    ]


def test_an_arm_without_a_log_is_left_out_and_without_differences_there_is_no_table() -> None:
    runs = [run("lazy", lazy=["t"]), run("eager", lazy="off"), run("mute")]
    text = document(runs, arms=("lazy", "eager", "mute"))
    assert [row[0] for row in grid(text, "In force, by the engine's own log:")[2:]] == [
        "lazy",
        "eager",
    ]
    assert "In force" not in document([run("lazy", lazy="off"), run("eager", lazy="off")])
    assert "In force" not in document([run("lazy"), run("eager")])


def test_what_others_published_stands_last_in_their_own_words() -> None:
    published = (
        PublishedTable(
            source="Table 2 of a thread | 2026",
            rows=({"arm": "random", "µs/row": "20.5"}, {"arm": "ahead", "note": "*best*"}),
        ),
        PublishedTable(source="another", rows=({"x": "1"},)),
    )
    text = document([run("lazy", lazy="off")], published=published)
    part = text.split("## As published by others\n", 1)[1]
    assert "## " not in part
    first, second = part.split("another:")
    assert "Table 2 of a thread \\| 2026:" in first
    header, _, *rows = grid(first, "2026:")
    assert header == ["arm", "µs/row", "note"]
    assert rows == [["random", "20.5", ""], ["ahead", "", "\\*best\\*"]]
    assert grid(f"x\n{second}", "x")[0] == ["x"]
    assert "As published" not in document([run("lazy", lazy="off")])
