"""What arms asked for and what they got, on engines that differ in flags and defaults."""

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.cgroup import own_group

from .conftest import Checkout, program

NEEDED = "--output-format -lv -npp -ntg -npl -c"

BENCH = """\
#!/bin/sh
# Flags: {flags}. Its lazy mode is {lazy} unless it is told another.
mode=mmap lazy={lazy} table=per_layer_token_embd.weight
if [ "$1" = --help ]; then
    printf -- '-h, --help  print this\\n-m, --model FNAME  the model\\n'
    for flag in {needed}; do echo "$flag N  as ever"; done
    for flag in {flags}; do echo "$flag"; done
    exit 0
fi
while [ $# -gt 0 ]; do
    case $1 in
        -m) model=$2 ;;
        --load-mode) mode=$2 ;;
        --no-mmap) mode=none ;;
        --lazy-mode) lazy=$2 ;;
        -ot) moved=${{2#*=}} ;;
        --memory) memory=$2 ;;
        --helper) helper=$2 ;;
        --sleep) seconds=$2 ;;
    esac
    shift
done
cat "$model" > /dev/null
if [ "$memory" ]; then head -c $memory /dev/zero | tail -c $memory > /dev/null || exit; fi
if [ "$helper" ]; then head -c $helper /dev/zero | tail -c $helper | wc -c; fi
if [ "$seconds" ]; then sleep $seconds & wait; fi
echo "load_tensors: loading model tensors, this can take a while... (load_mode = $mode)" >&2
[ $lazy = on ] && echo "add: tensor $table (size = 1 MiB) lazy read enabled" >&2
case $mode in
    *mlock) echo "warning: failed to mlock 31866880-byte buffer (after previously locking 0" \\
        "bytes): Cannot allocate memory" >&2 ;;
esac
[ "$moved" ] && echo "tensor $table (1 MiB q8_0) buffer type overridden to $moved" >&2
buffer=CPU_Mapped
[ $mode = none ] && buffer=CPU
echo "load_tensors:   $buffer model buffer size =     1.00 MiB" >&2
echo '{{"pp": 512, "tg": 128, "pl": 1, "n_threads": 2, "t_pp": 0.5, "speed_pp": 1024.0,' \\
    '"t_tg": 1.0, "speed_tg": 128.0}}'
"""


def bench(flags: str, lazy: str) -> str:
    return BENCH.format(flags=flags, lazy=lazy, needed=NEEDED)


@pytest.fixture
def little_lockable_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def budgets_work() -> bool:
    try:
        with own_group(64 * 2**20, "test", Path("/")):
            return True
    except ColdbenchError:
        return False


@pytest.mark.usefixtures("little_lockable_memory")
def test_what_an_arm_asked_for_and_what_it_got_are_told_apart(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    new = "--load-mode --lazy-mode -ot --memory --helper --sleep"
    engines = {
        "new": bench(new, "on"),
        "newer": bench(new, "off"),
        "old": bench("--no-mmap", "off"),
        "terse": "#!/bin/sh\necho 'error: invalid argument: --no-mmap' >&2\nexit 1\n",
    }
    for name, script in engines.items():
        program(checkout.folder / name / "llama-batched-bench", script)
    toy["builds"] = {name: {"source": {"binaries": name}} for name in engines}
    toy["workloads"]["bench"]["args"] += ["-c", "1024"]
    toy["workloads"]["bench"]["time_limit"] = "3s"
    toy["factors"] = {
        "mode": {
            "asis": [],
            "none": {"args": ["--load-mode", "none"], "for_build": {"old": ["--no-mmap"]}},
        }
    }
    listed = {
        "none-eager": ("new", ["--load-mode", "none", "--lazy-mode", "off"]),
        "mmap": ("new", ["--load-mode", "mmap"]),
        "locked": ("new", ["--load-mode", "mmap+mlock"]),
        "renamed": ("old", ["--load-mode", "none"]),
        "removed": ("terse", ["--no-mmap"]),
        "nowhere": ("new", ["-ot", "no_such_tensor=CPU"]),
        "there-anyway": ("new", ["--lazy-mode", "off", "-ot", "per_layer_token_embd=CPU"]),
        "broken": ("new", ["-ot", "per_(layer=CPU"]),
        "endless": ("new", ["--sleep", "600"]),
    }
    toy["arms"] = {
        "matrix": {"build": ["new", "newer", "old"], "mode": ["asis", "none"]},
        "name": "{build}-{mode}",
        "include": [
            {"name": name, "build": build, "args": args} for name, (build, args) in listed.items()
        ],
    }
    with_budget = budgets_work()
    if with_budget:
        toy["arms"]["include"] += [
            {"name": name, "build": "new", "args": [flag, "200000000"], "budget": "64MiB"}
            for name, flag in (("large", "--memory"), ("large-helper", "--helper"))
        ]
    toy["blocks"] = {"cold": 1}
    del toy["identity"], toy["workloads"]["text"], toy["comparisons"]
    output = checkout.run("--config", checkout.study(toy), fails=True)
    assert "Traceback" not in output

    records = {record["arm"]: record for record in checkout.records()}
    assert Counter(record["arm"] for record in checkout.records()) == Counter(records.keys())
    told, rows = checkout.notes(), checkout.table()

    def said(*words: str) -> bool:
        return any(all(word in note for word in words) for note in told)

    def reason(arm: str) -> str:
        assert rows[arm]["cold_prompt_tps_n"] == "0"
        assert rows[arm]["cold_runs_ok"] == "0"
        status = records[arm]["status"].replace("over budget", "exceeded the budget")
        assert said(f"{arm}, cold: 1 of 1 runs {status}: {records[arm]['reason']}")
        return f"{records[arm]['status']}: {records[arm]['reason']}"

    # The mode in force, beside the one asked for.
    lazily = ["per_layer_token_embd.weight"]
    assert records["new-none"]["argv"][-2:] == ["--load-mode", "none"]
    in_force = {arm: record["effective"] for arm, record in records.items()}
    assert in_force["new-none"] | {"buffers": 0} == {
        "load_mode": "none",
        "lazy": lazily,
        "buffers": 0,
        "threads": 2,
    }
    assert in_force["none-eager"]["lazy"] == "off"
    assert in_force["new-asis"] == in_force["mmap"]
    assert said("new-asis", "mmap", "differ in --load-mode but ran with the same settings")
    assert not said("new-none", "none-eager")
    assert said(
        "new-asis",
        "newer-asis",
        "have equal arguments, but their builds ran with other settings: lazy ",
        "per_layer_token_embd.weight",
        " against ",
    )

    # Flags that a build does not know.
    assert reason("renamed") == (
        "refused: build old does not know --load-mode; leave it out there, or give that build's "
        "own flag under for_build"
    )
    assert reason("removed") == "failed: exit status 1: error: invalid argument: --no-mmap"
    assert records["old-none"]["argv"][-1] == "--no-mmap"
    assert in_force["old-none"]["load_mode"] == "none"

    # Tensor patterns.
    assert reason("nowhere") == "refused: pattern no_such_tensor matches 0 of 2 tensors"
    assert "refused: pattern per_(layer is not a regular expression" in reason("broken")
    assert "position 4" in reason("broken")
    assert records["nowhere"]["exit"]["ended"] == "not started"
    assert records["there-anyway"]["status"] == "ok"
    assert said("there-anyway: -ot per_layer_token_embd=CPU equals the default placement")

    # Memory that could not be locked.
    assert reason("locked").startswith("not delivered: locked memory: ")
    assert in_force["locked"]["mlock"] is False
    assert said("locked: mlock not in effect (limit 64 KiB)")

    # Limits: what the run had taken until then.
    assert reason("endless").startswith("failed: did not exit: time limit 3 s (peak RSS ")
    assert "1 MiB read)" in reason("endless")
    for arm in ("large", "large-helper") if with_budget else ():
        assert reason(arm).startswith(
            "over budget: killed: out of memory under a 64 MiB budget (peak "
        )
        assert 2**20 < records[arm]["memory"]["peak_rss_bytes"] < 100 * 2**20
        assert records[arm]["memory"]["cgroup_oom_kills"] == 1
    for arm in ("new-asis", "newer-none", "old-asis"):
        assert rows[arm]["cold_prompt_tps_median"] == "1024"

    # What is said is of the arms that the study has now, under the names they have now.
    kept = {"there-anyway": "moved", "mmap": "mapped"}
    listed_arms = toy["arms"]["include"]
    toy["arms"]["include"] = [arm for arm in listed_arms if arm["name"] in kept]
    for arm in toy["arms"]["include"]:
        arm["name"] = kept[arm["name"]]
    checkout.run("--config", checkout.study(toy))
    assert len(checkout.records()) == len(records)
    told = checkout.notes()
    assert said("moved: -ot per_layer_token_embd=CPU equals the default placement")
    assert said("new-asis", "mapped", "differ in --load-mode but ran with the same settings")
    assert not any(said(gone) for gone in ("mlock", "there-anyway", "mmap"))
