"""The workflow from a study to its tables, on a scripted engine."""

import json
import re
import shutil
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.publish.outcome import conclude
from coldbench.study.plan import Plan

from .conftest import MODEL, Checkout

NOTHING = "Nothing to be done"


def jobs(output: str) -> dict[str, int]:
    """Return how often each rule would run, from a dry run's job table."""
    found = re.findall(r"^(\w+) +(\d+)$", output.split("job  ")[1], re.MULTILINE)
    return {rule: int(count) for rule, count in found}


def test_a_study_becomes_its_tables_and_then_there_is_nothing_to_do(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    study = checkout.study(toy)
    checkout.run("--config", study)
    rows = checkout.table()
    assert float(rows["plain"]["cold_prompt_tps_median"]) == 1000
    assert float(rows["other"]["cold_prompt_tps_median"]) == 2000
    assert rows["plain"]["cold_prompt_tps_n"] == "2"
    assert rows["plain"]["warm_prompt_tps_n"] == "1"
    assert {row["identity"] for row in rows.values()} == {"ok"}
    assert len({row["md5"] for row in rows.values()}) == 1

    # The order in which runs happened is the manifest's.
    records, manifest = checkout.records(), checkout.manifest()
    assert [record["run"] for record in records] == [entry["run"] for entry in manifest]
    for record, entry in zip(records, manifest, strict=True):
        for key in ("argv", "environment", "cell", "arm", "state", "position"):
            assert record[key] == entry[key]
    for name in ("block-001", "block-002"):
        path = checkout.results / "toy" / "raw" / "toy" / "bench" / f"{name}.jsonl"
        times = [json.loads(line)["started"] for line in path.read_text().splitlines()]
        assert times == sorted(times)
        assert path.with_suffix(".manifest.jsonl").stat().st_mtime_ns < path.stat().st_mtime_ns

    cold = [record for record in records if record["state"] == "cold"]
    assert len(cold) == 6
    for record in cold:
        assert record["before"]["files"] == {"toy.gguf": 0}
        assert record["after"]["files"]["toy.gguf"] > 500_000
        assert record["io"]["read_bytes"] >= 500_000
        assert record["memory"]["peak_rss_bytes"] > 0
        assert record["status"] == "ok"
        assert "COLDBENCH_PAD" not in record["environment"]
    for record in records:
        if record["state"] == "warm":
            assert record["io"]["read_bytes"] == 0

    lines = (checkout.results / "toy" / "runs.jsonl").read_text().splitlines()
    assert len(lines) == len(records)
    provenance = json.loads((checkout.results / "toy" / "provenance.json").read_text())
    assert provenance["cells"].keys() == {record["cell"] for record in records}

    for _ in range(3):
        assert NOTHING in checkout.run("--config", study, "--dry-run")

    # Keys in another order, a comment, a label: no measurement runs again.
    reordered = dict(reversed(toy.items())) | {"title": "another title"}
    reordered["models"]["toy"]["label"] = "the toy"
    checkout.study(reordered)
    path = checkout.folder / "config" / "studies" / "toy.yaml"
    path.write_text("# a comment\n" + path.read_text())
    planned = checkout.run("--config", study, "--dry-run")
    assert jobs(planned) == {"all": 1, "matrix": 1, "outcome": 1, "provenance": 1, "total": 4}
    checkout.run("--config", study)
    assert checkout.records() == records
    assert "the toy" in (checkout.results / "toy" / "matrix.md").read_text()

    # An added arm adds its own runs, another block its own; nothing is measured twice.
    toy["arms"].append({"name": "third", "build": "stub", "environment": {"STUB_SPEED": "3"}})
    checkout.study(toy)
    checkout.run("--config", study)
    added = [record for record in checkout.records() if record not in records]
    assert {record["arm"] for record in added} == {"third"}
    assert len(added) == 4  # two cold, one warm, one text
    assert len(checkout.records()) == len(records) + 4
    toy["blocks"] = {"cold": 3, "warm": 1}
    checkout.study(toy)
    checkout.run("--config", study)
    assert len(checkout.records()) == len(records) + 4 + 4
    assert {record["block"] for record in checkout.records()} == {0, 1, 2, 3}
    assert checkout.table()["third"]["cold_prompt_tps_n"] == "3"


def test_what_goes_wrong_in_an_arm_is_said_in_its_row_and_no_figure_of_it_is_used(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    expected = {
        "crash": "SIGSEGV",
        "illegal": "illegal instruction: binary built for another CPU?",
        "silent": "no result",
        "cut": "partial",
        "nan": "not a finite number",
        "twice": "2 rows where one test was asked for",
        "endless": "output limit",
        "hang": "time limit 2 s",
    }
    toy["arms"] = [{"name": "good", "build": "stub"}] + [
        {"name": name, "build": "stub", "environment": {"STUB": name}} for name in expected
    ]
    flag = checkout.folder / "flag"
    toy["arms"].append(
        {
            "name": "sometimes",
            "build": "stub",
            "environment": {"STUB": "sometimes", "STUB_FLAG": str(flag)},
        }
    )
    toy["workloads"]["bench"] |= {"time_limit": "2s", "output_limit": "1MiB"}
    toy["blocks"] = {"cold": 1}
    del toy["identity"], toy["workloads"]["text"], toy["comparisons"]
    study = checkout.study(toy)
    output = checkout.run("--config", study, fails=True)
    assert "Traceback" not in output
    assert f"error: {len(expected)} cells incomplete:\n" in output
    assert "toy bench cold crash: 0 of 1 ok (failed): killed by SIGSEGV" in output
    assert "the tables are published in results/toy" in output
    text = (checkout.results / "toy" / "matrix.md").read_text()
    rows = checkout.table()
    for name, reason in expected.items():
        assert rows[name]["cold_prompt_tps_n"] == "0", name
        assert any(name in line and reason in line for line in text.splitlines()), (name, text)
    assert rows["good"]["cold_prompt_tps_n"] == "1"
    # Void is repeated, within bounds, kept and counted.
    statuses = {
        name: [record["status"] for record in checkout.records() if record["arm"] == name]
        for name in ("silent", "sometimes", "crash")
    }
    assert statuses == {
        "silent": ["void", "void", "void"],
        "sometimes": ["void", "ok"],
        "crash": ["failed"],
    }
    assert rows["sometimes"]["cold_prompt_tps_n"] == "1"
    # What is incomplete is said each time; nothing else is left to do.
    planned = checkout.run("--config", study, "--dry-run")
    assert jobs(planned) == {"all": 1, "outcome": 1, "total": 2}


def test_identity_that_fails_publishes_no_figures(checkout: Checkout, toy: dict[str, Any]) -> None:
    toy["models"]["second"] = {"source": {"path": "second.gguf"}}
    shutil.copy2(checkout.folder / "toy.gguf", checkout.folder / "second.gguf")
    toy["arms"][2]["environment"]["STUB_TEXT"] = "other"
    toy["blocks"] = {"cold": 1}
    output = checkout.run("--config", checkout.study(toy), fails=True)
    assert "error: 6 arms without identity:\n" in output
    assert "toy plain, again, other: texts differ" in output
    rows = checkout.table()
    assert {row["identity"] for row in rows.values()} == {"failed"}
    assert all("texts differ" in row["identity_reason"] for row in rows.values())
    assert all(row["cold_prompt_tps_median"] == "" for row in rows.values())
    assert "identity" in (checkout.results / "toy" / "verdicts.csv").read_text()

    for behaviour, reason in (
        ("empty", "no text"),
        ("random", "texts differ"),
        ("deaf", "a mutated prompt gave the same text"),
        ("crash", "exit status 3"),
    ):
        toy["arms"] = [{"name": "only", "build": "stub", "environment": {"STUB_TEXT": behaviour}}]
        toy["comparisons"] = {}
        checkout.run("--config", checkout.study(toy), fails=True)
        rows = checkout.table()
        assert list(rows) == ["only", "only-again"]
        for row in rows.values():
            assert row["identity"] == "failed"
            assert reason in row["identity_reason"]


def test_a_broken_model_stops_only_its_own_cells(checkout: Checkout, toy: dict[str, Any]) -> None:
    bad = checkout.folder / "page.gguf"
    bad.write_text("<!DOCTYPE html><html><body>not found</body></html>")
    toy["models"]["page"] = {"source": {"path": "page.gguf"}}
    toy["models"]["gone"] = {"source": {"path": "gone.gguf"}}
    toy["blocks"] = {"cold": 1}
    output = checkout.run("--config", checkout.study(toy), fails=True)
    assert "page.gguf: this is an HTML page" in output
    assert "gone.gguf" in output
    assert "Traceback" not in output
    assert {record["model"] for record in checkout.records()} == {"toy"}


@pytest.mark.parametrize("way", ["budgets", "builds"])
def test_arms_that_come_to_the_same_on_a_model_are_refused_and_named(
    checkout: Checkout, toy: dict[str, Any], way: str
) -> None:
    """Two arms with one cell would be measured once, under one of their names."""
    if way == "budgets":
        toy["arms"][0]["budget"] = "1000%"
        toy["arms"][2] = {"name": "other", "build": "stub"}
        toy["arms"][2]["budget"] = f"{10 * MODEL.stat().st_size}B"
    else:
        toy["builds"]["copy"] = {"source": {"binaries": "copy"}}
        shutil.copytree(checkout.folder / "engine", checkout.folder / "copy")
        toy["arms"][2] = {"name": "other", "build": "copy"}
    output = checkout.run("--config", checkout.study(toy), fails=True)
    assert "error: arms plain and other do the same on model toy: " in output
    assert "{name: other, aa_of: plain}" in output
    assert checkout.records() == []


def test_a_study_with_an_arm_that_no_receipt_names_has_not_come_through(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    study = checkout.study(toy)
    checkout.run("--config", study)
    results = checkout.results / "toy"
    presentation = Plan(checkout.folder / "config" / "studies" / "toy.yaml").presentation()
    receipts = [*results.glob("blocks/toy/bench/*.json"), results / "identity" / "toy.json"]
    conclude(presentation, results, receipts, checkout.folder / "outcome.json")
    for path in receipts:
        receipt = json.loads(path.read_text())
        cells = [entry for entry in receipt["cells"] if entry["arm"] != "other"]
        dropped = {entry["cell"] for entry in receipt["cells"]} - {e["cell"] for e in cells}
        gone = {record["run"] for record in checkout.records() if record["cell"] in dropped}
        runs = {run: status for run, status in receipt["runs"].items() if run not in gone}
        path.write_text(json.dumps(receipt | {"cells": cells, "runs": runs}))
    with pytest.raises(ColdbenchError, match=r"^toy bench other: no run of it was planned; "):
        conclude(presentation, results, receipts, checkout.folder / "again.json")
