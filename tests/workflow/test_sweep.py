"""A sweep that is edited: only what changed is measured, and nothing else is touched."""

import re
from typing import Any

from .conftest import Checkout


def sweep(sizes: list[int]) -> dict[str, Any]:
    """Return a study of 2 workloads x 12 arms = 24 cells, and the A/A pair's."""
    return {
        "models": {"toy": {"source": {"path": "toy.gguf"}}},
        "builds": {"stub": {"source": {"binaries": "engine"}}},
        "workloads": {
            "run-{n}": {
                "sweep": {"n": ["1", "2"]},
                "driver": "llama-batched-bench",
                "args": ["-npp", "512", "-ntg", "128", "-npl", "1"],
                "environment": {"STUB_NUMBER": "{n}"},
            }
        },
        "factors": {
            "batch": {"{b}": {"sweep": {"b": sizes}, "args": ["-b", "{b}"]}},
            "speed": {"{s}": {"sweep": {"s": [1, 2, 3]}, "environment": {"STUB_SPEED": "{s}"}}},
        },
        "arms": {
            "matrix": {"build": "stub", "batch": "*", "speed": "*"},
            "name": "b{batch}-s{speed}",
        },
        "blocks": {"cold": 1},
        "pivots": {
            "prompt": {"rows": ["workload", "batch"], "columns": "speed", "metrics": "prompt_tps"}
        },
    }


def test_an_edited_value_measures_only_its_own_cells(checkout: Checkout) -> None:
    study = checkout.study(sweep([1, 2, 4, 8]))
    checkout.run("--config", study)
    before = checkout.records()
    assert len({(run["workload"], run["arm"]) for run in before if "again" not in run["arm"]}) == 24
    files = {
        path: path.read_bytes() for path in (checkout.results / "toy" / "raw").rglob("*.jsonl")
    }

    checkout.study(sweep([1, 2, 3, 8]))
    said = checkout.run("--config", study)
    after = checkout.records()
    new = [run for run in after if run not in before]
    assert [run for run in after if run in before] == before
    assert {run["arm"] for run in new} == {"b3-s1", "b3-s2", "b3-s3"}
    assert len(new) == 2 * 3
    for path, content in files.items():
        assert path.read_bytes().startswith(content)
    counts = dict(re.findall(r"^(\w+) +(\d+)$", said.split("job  ")[1], re.MULTILINE))
    assert counts["block"] == "2"
    assert "model" not in counts
    assert "build" not in counts
    rows = checkout.table()
    assert "b4-s1" not in rows
    assert float(rows["b3-s2"]["cold_prompt_tps_median"]) == 2000
    pivot = (checkout.results / "toy" / "matrix.md").read_text().split("## By factors")[1]
    line = next(line for line in pivot.splitlines() if re.match(r"\| run-2 +\| 3 ", line))
    assert re.sub(" +", " ", line) == "| run-2 | 3 | 1,000 | 2,000 | 3,000 |"

    # A value more adds its cells; nothing else is measured.
    checkout.study(sweep([1, 2, 3, 8, 16]))
    checkout.run("--config", study)
    added = [run for run in checkout.records() if run not in after]
    assert {run["arm"] for run in added} == {"b16-s1", "b16-s2", "b16-s3"}
    assert len(added) == 6
