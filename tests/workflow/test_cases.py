"""What users of benchmark scripts have reported, repeated on the whole workflow."""

import csv
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.cgroup import memory_budget

from .conftest import ROOT, Checkout

DATA = ROOT / "tests" / "data" / "bench"
NEEDED = "--output-format -lv -npp -ntg -npl -c"

BENCH = """\
#!/bin/sh
# Flags: {flags}. Its lazy mode is {lazy} unless it is told another.
mode=mmap lazy={lazy} table=per_layer_token_embd.weight model=
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
        --memory) head -c "$2" /dev/zero | tail -c "$2" | wc -c ;;
        --sleep) sleep "$2" & wait ;;
    esac
    shift
done
cat "$model" > /dev/null
echo "load_tensors: loading model tensors, this can take a while... (load_mode = $mode)" >&2
[ $lazy = on ] && echo "add: tensor $table (size = 1 MiB) lazy read enabled" >&2
case $mode in
    *mlock) echo "warning: failed to mlock 31866880-byte buffer (after previously locking 0" \\
        "bytes): Cannot allocate memory" >&2 ;;
esac
echo "load_tensors:   CPU_Mapped model buffer size =     1.00 MiB" >&2
echo '{{"pp": 512, "tg": 128, "pl": 1, "n_threads": 2, "t_pp": 0.5, "speed_pp": 1024.0,' \\
    '"t_tg": 1.0, "speed_tg": 128.0}}'
"""


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)


def bench(flags: str, lazy: str) -> str:
    return BENCH.format(flags=flags, lazy=lazy, needed=NEEDED)


def table(checkout: Checkout) -> dict[str, dict[str, str]]:
    with (checkout.results / "toy" / "matrix.csv").open() as stream:
        return {row["arm"]: row for row in csv.DictReader(stream)}


def notes(checkout: Checkout) -> list[str]:
    lines = (checkout.results / "toy" / "matrix.md").read_text().splitlines()
    return [line.replace("\\", "") for line in lines if line.startswith("- ")]


@pytest.fixture
def little_lockable_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def budgets_work() -> bool:
    try:
        with memory_budget(64 * 2**20, "test"):
            return True
    except ColdbenchError:
        return False


@pytest.mark.usefixtures("little_lockable_memory")
def test_what_an_arm_asked_for_and_what_it_got_are_told_apart(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    new = "--load-mode --lazy-mode -ot --memory --sleep"
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
        "there-anyway": ("new", ["-ot", "per_layer_token_embd=CPU"]),
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
        toy["arms"]["include"].append(
            {"name": "large", "build": "new", "args": ["--memory", "200000000"], "budget": "64MiB"}
        )
    toy["blocks"] = {"cold": 1}
    del toy["identity"], toy["workloads"]["text"], toy["comparisons"]
    output = checkout.run("--config", checkout.study(toy))
    assert "Traceback" not in output

    records = {record["arm"]: record for record in checkout.records()}
    assert Counter(record["arm"] for record in checkout.records()) == Counter(records.keys())
    told, rows = notes(checkout), table(checkout)

    def said(*words: str) -> bool:
        return any(all(word in note for word in words) for note in told)

    def reason(arm: str) -> str:
        assert rows[arm]["cold_prompt_tps_n"] == "0"
        assert rows[arm]["cold_runs_ok"] == "0"
        assert said(f"{arm}, cold: 1 of 1 runs {records[arm]['status']}: {records[arm]['reason']}")
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
    assert said("new-asis and mmap differ in --load-mode but ran with the same settings")
    assert not said("new-none and none-eager differ in")
    assert said(
        "new-asis and newer-asis have equal arguments, but their builds ran with other settings",
        f"lazy {lazily} against off",
    )

    # Flags that a build does not know.
    assert reason("renamed") == "refused: build old does not know --load-mode"
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
    assert records["locked"]["status"] == "ok"
    assert in_force["locked"]["mlock"] is False
    assert said("locked: mlock not in effect (limit 64 KiB)")

    # Limits: what the run had taken until then.
    assert reason("endless").startswith("failed: did not exit: time limit 3 s (peak RSS ")
    assert "MiB read)" in reason("endless")
    if with_budget:
        assert reason("large").startswith("failed: killed: out of memory under a 64 MiB budget (")
        peak = records["large"]["memory"]["cgroup_peak_bytes"]
        assert 60 * 2**20 < peak <= 64 * 2**20
        assert f"peak {peak / 2**20:.1f} MiB" in reason("large")
    for arm in ("new-asis", "newer-none", "old-asis"):
        assert rows[arm]["cold_prompt_tps_median"] == "1024"


def from_file(name: str, then: str = "exit 0") -> str:
    return f"#!/bin/sh\ncat <<'END'\n{(DATA / name).read_text()}\nEND\n{then}\n"
