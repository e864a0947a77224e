"""Blocks until the intervals are narrow, and the drop-outs of a study, on a scripted engine."""

import csv
import json
from typing import Any

from .conftest import Checkout

NOTHING = "Nothing to be done"
NOISY = """\
#!/bin/sh
# Every process is a little faster or slower than the one before, by a count kept beside it.
count=$(cat "$COUNT" 2> /dev/null || echo 0)
echo $((count + 1)) > "$COUNT"
for word; do
    [ "$previous" = -m ] && model=$word
    previous=$word
done
cat "$model" > /dev/null
awk -v s=$((1000 + STUB_NOISE * (count % 3))) 'BEGIN {
    printf "{\\"pp\\": 512, \\"tg\\": 128, \\"pl\\": 1, \\"n_threads\\": 2, "
    printf "\\"t_pp\\": %.6f, \\"speed_pp\\": %.6f, ", 512 / s, s
    printf "\\"t_tg\\": 1.0, \\"speed_tg\\": 128.0}\\n"
}'
"""


def noisy(checkout: Checkout, toy: dict[str, Any], noise: int) -> dict[str, Any]:
    """Make the study's rates scatter by `noise` per mille, differently in each arm and block."""
    program = checkout.folder / "engine" / "llama-batched-bench"
    program.write_text(NOISY)
    for arm in ("plain", "other"):
        (found,) = (each for each in toy["arms"] if each["name"] == arm)
        found["environment"] = {
            "STUB_NOISE": str(noise),
            "COUNT": str(checkout.folder / f"count-{arm}"),
        }
    del toy["identity"], toy["workloads"]["text"]
    toy["comparisons"]["claim"] |= {"states": "cold"}
    return toy


def rows(checkout: Checkout, name: str) -> list[dict[str, str]]:
    with (checkout.results / "toy" / f"{name}.csv").open() as stream:
        return list(csv.DictReader(stream))


def until(checkout: Checkout) -> dict[str, Any]:
    path = checkout.results / "toy" / "until" / "toy" / "bench.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_blocks_are_added_until_the_interval_is_narrow_and_none_is_measured_twice(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    toy = noisy(checkout, toy, 20)
    toy["blocks"] = {"cold": 3, "warm": 1}
    study = checkout.study(toy)
    checkout.run("--config", study)
    fixed = checkout.records()
    assert {(run["block"], run["state"]) for run in fixed} == {
        (1, "cold"),
        (2, "cold"),
        (3, "cold"),
        (1, "warm"),
    }

    toy["blocks"]["until"] = {"half_width": "2.5%", "max": 9}
    checkout.study(toy)
    output = checkout.run("--config", study)
    assert "Traceback" not in output
    records = checkout.records()
    assert [run for run in records if run["block"] <= 3] == fixed
    added = sorted({run["block"] for run in records} - {1, 2, 3})
    # The comparison is of cold runs: the added blocks have no others.
    assert {run["state"] for run in records if run["block"] in added} == {"cold"}
    assert 1 <= len(added) <= 6
    assert added == list(range(4, 4 + len(added)))
    (claim,) = (row for row in rows(checkout, "verdicts") if row["kind"] == "claim")
    assert int(claim["n"]) == 3 + len(added)
    width = (float(claim["high"]) / float(claim["low"])) ** 0.5 - 1
    assert width <= 0.025
    assert until(checkout)["ended"].endswith("every interval that can be had is that narrow")
    assert f"{len(added)} blocks were added for intervals within 2.5%" in (
        (checkout.results / "toy" / "matrix.md").read_text()
    )
    assert NOTHING in checkout.run("--config", study, "--dry-run")

    # A wider wish: the blocks are there, and those that it would not have asked for are left out.
    toy["blocks"]["until"] = {"half_width": "90%", "max": 9}
    checkout.study(toy)
    checkout.run("--config", study)
    assert checkout.records() == records
    assert until(checkout)["blocks"] == []
    # Without `until`, and as fixed blocks, nothing that was measured is measured again.
    del toy["blocks"]["until"]
    checkout.study(toy)
    checkout.run("--config", study)
    assert checkout.records() == records
    (claim,) = (row for row in rows(checkout, "verdicts") if row["kind"] == "claim")
    assert claim["n"] == "3"
    toy["blocks"]["cold"] = 4
    checkout.study(toy)
    checkout.run("--config", study)
    assert checkout.records() == records


def test_adding_blocks_ends_at_the_most_and_says_so(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    toy = noisy(checkout, toy, 300)
    toy["blocks"] = {"cold": 2, "until": {"half_width": "0.1%", "max": 4}}
    study = checkout.study(toy)
    checkout.run("--config", study)
    assert {run["block"] for run in checkout.records()} == {1, 2, 3, 4}
    ended = until(checkout)["ended"]
    assert ended.endswith("4 blocks were reached with wider intervals of claim")

    # Stopped in an added block, it goes on there.
    records = checkout.records()
    raw = checkout.results / "toy" / "raw" / "toy" / "bench"
    lines = (raw / "block-004.jsonl").read_bytes().splitlines(keepends=True)
    (raw / "block-004.jsonl").write_bytes(b"".join(lines[:1]) + lines[1][:99])
    checkout.run("--config", study, "--forcerun", "until")
    again = checkout.records()
    assert len(again) == len(records)
    assert again[: len(records) - 2] == records[: len(records) - 2]


def test_comparisons_that_cannot_be_made_ask_for_no_blocks(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    toy["arms"][2]["environment"] = {"STUB": "crash"}
    toy["blocks"] = {"cold": 2, "until": {"half_width": "1%", "max": 5}}
    del toy["identity"], toy["workloads"]["text"]
    output = checkout.run("--config", checkout.study(toy), fails=True)
    assert "1 cell incomplete:\n" in output
    assert {run["block"] for run in checkout.records()} == {1, 2}
    (claim,) = (row for row in rows(checkout, "verdicts") if row["kind"] == "claim")
    assert claim["status"] == "not comparable"
    assert claim["reason"] == "incomplete: other 0 of 2 ok (failed)"
