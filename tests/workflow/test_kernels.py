"""Our kernels through the whole workflow: built, fed, measured, compared and published."""

from typing import Any

from .conftest import Checkout

NOTHING = "Nothing to be done"
NO_FIO = "fio, which measures the device, is not on the PATH: install the package fio"
NO_ROOM = "the budget of 1048576 bytes"


def gathering() -> dict[str, Any]:
    """Five arms of gather on a table of 4 MiB or so, one of which no machine can do."""
    return {
        "models": {
            "qwen": {
                "source": {
                    "standin": {
                        "architecture": "qwen4exp",
                        "body": "26MiB",
                        "table": {"rows": 65536, "type": "Q8_0"},
                    }
                }
            }
        },
        "builds": {
            "kernels": {
                "source": {"folder": "src/native/kernels"},
                "cmake": {"CMAKE_BUILD_TYPE": "Release"},
                "targets": ["gather"],
            }
        },
        "workloads": {
            "rows": {
                "driver": "gather",
                "trace": {"zipf": {"exponent": "1.0", "count": 200}},
                "args": ["--batch", "256"],
                "time_limit": "60s",
            }
        },
        "arms": [
            {"name": "plain", "build": "kernels", "args": ["--strategy", "plain"]},
            {"name": "again", "aa_of": "plain"},
            {"name": "ahead", "build": "kernels", "args": ["--strategy", "random+readahead"]},
            {
                "name": "device",
                "build": "kernels",
                "args": ["--strategy", "fio"],
                "environment": {"PATH": "/nowhere"},
            },
        ],
        "blocks": {"cold": 2},
        "comparisons": {
            "ahead": {"treatment": "ahead", "control": "plain", "metrics": "ns_per_gather"}
        },
        "identity": {"workload": "rows", "without": "device"},
    }


def streaming() -> dict[str, Any]:
    """Three policies of stream under half of the model, one told to do with far too little."""
    study = gathering()
    study["models"] = {
        "weights": {"source": {"standin": {"architecture": "llama", "body": "64MiB"}}}
    }
    study["builds"]["kernels"]["targets"] = ["stream"]
    study["workloads"] = {
        "cycle": {
            "driver": "stream",
            "args": ["--tokens", "2", "--threads", "1"],
            "time_limit": "60s",
        }
    }
    policies = {
        "mmap": ["--policy", "mmap"],
        "scheduled": ["--policy", "scheduled"],
        "cramped": ["--policy", "scheduled", "--budget", "1048576"],
    }
    study["arms"] = [
        {"name": name, "build": "kernels", "args": args, "budget": "90%"}
        for name, args in policies.items()
    ]
    study["arms"].insert(1, {"name": "again", "aa_of": "mmap"})
    study["comparisons"] = {
        "scheduled": {
            "treatment": "scheduled",
            "control": "mmap",
            "metrics": ["s_per_token", "bytes_per_token"],
        }
    }
    study["identity"] = {"workload": "cycle", "without": "cramped"}
    return study


def outcomes(checkout: Checkout) -> dict[tuple[str, str], set[str]]:
    """Return the statuses of all runs by arm and state."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in checkout.records():
        found.setdefault((run["arm"], run["state"]), set()).add(run["status"])
    return found


def test_gather_is_measured_compared_and_one_arm_refused_with_the_mend(checkout: Checkout) -> None:
    study = checkout.study(gathering())
    said = checkout.run("--config", study, fails=True)
    assert "Traceback" not in said
    assert outcomes(checkout) == {
        **{(arm, "cold"): {"ok"} for arm in ("plain", "again", "ahead")},
        **{(arm, "unmeasured"): {"ok"} for arm in ("plain", "again", "ahead")},
        ("device", "cold"): {"refused"},
    }
    assert "device" in said
    assert NO_FIO in said

    rows = checkout.table()
    for arm in ("plain", "again", "ahead"):
        row = rows[arm]
        assert row["identity"] == "ok"
        assert row["cold_runs_ok"] == row["cold_runs"] == "2"
        for metric in ("ns_per_gather", "ns_per_page", "pages_unique", "peak_rss_bytes"):
            assert float(row[f"cold_{metric}_median"]) > 0, metric
        assert float(row["cold_read_bytes_median"]) > 0
    # MADV_RANDOM once, and each range of a batch; the mapping as it is has no advice
    assert float(rows["ahead"]["cold_hints_median"]) > 1
    assert float(rows["plain"]["cold_hints_median"]) == 0
    assert rows["ahead"]["cold_pages_unique_median"] == rows["plain"]["cold_pages_unique_median"]
    assert len({rows[arm]["md5"] for arm in ("plain", "again", "ahead")}) == 1
    device = rows["device"]
    assert (device["cold_runs_ok"], device["cold_runs"]) == ("0", "2")
    assert device["cold_ns_per_page_median"] == ""
    assert f"[1] device, cold: 2 of 2 runs refused: {NO_FIO}" in " ".join(checkout.notes())
    matrix = (checkout.results / "toy" / "matrix.md").read_text()
    for heading in ("cold gather, ns", "cold a page, ns", "cold pages touched", "cold hints"):
        assert f" {heading} |" in matrix
    # what is fed is told as a report of its own
    access = (checkout.results / "toy" / "access" / "qwen" / "rows.txt").read_text()
    assert "3,200, 16 a token" in access

    one = next(run for run in checkout.records() if (run["arm"], run["state"]) == ("ahead", "cold"))
    assert one["delivered"] == {"loaded files": True, "hints": True}
    assert one["effective"]["strategy"] == "random+readahead"
    assert set(one["hashes"]) == {"model", "build", "arm", "workload", "feed"}


def test_a_second_run_does_nothing_and_another_trace_measures_anew(checkout: Checkout) -> None:
    toy = gathering()
    toy["arms"] = toy["arms"][:-1]
    toy["identity"] = {"workload": "rows"}
    toy["blocks"] = {"cold": 1}
    study = checkout.study(toy)
    checkout.run("--config", study)
    before = checkout.records()
    assert NOTHING in checkout.run("--config", study, "--dry-run")
    checkout.run("--config", study)
    assert checkout.records() == before
    toy["workloads"]["rows"]["trace"]["zipf"]["seed"] = 2
    checkout.study(toy)
    checkout.run("--config", study)
    after = checkout.records()
    assert after[: len(before)] != after[len(before) :]
    assert len(after) == 2 * len(before)
    assert len({run["hashes"]["feed"] for run in after}) == 2
    assert {run["status"] for run in after} == {"ok"}


def test_stream_is_measured_under_shares_of_its_model(checkout: Checkout) -> None:
    study = checkout.study(streaming())
    said = checkout.run("--config", study, fails=True)
    assert "Traceback" not in said
    assert NO_ROOM in said
    found = outcomes(checkout)
    assert found["cramped", "cold"] == {"refused"}
    for arm in ("mmap", "again", "scheduled"):
        assert found[arm, "cold"] == found[arm, "unmeasured"] == {"ok"}
    rows = checkout.table()
    for arm in ("mmap", "again", "scheduled"):
        assert rows[arm]["identity"] == "ok"
        for metric in ("s_per_token", "first_token_s", "request_s"):
            assert float(rows[arm][f"cold_{metric}_median"]) > 0, metric
        assert float(rows[arm]["cold_bytes_per_token_median"]) >= 0
    assert float(rows["scheduled"]["cold_retained_bytes_median"]) > 0
    assert rows["cramped"]["cold_s_per_token_median"] == ""
    assert any(f"cramped, cold: 2 of 2 runs refused: {NO_ROOM}" in n for n in checkout.notes())
    size = next(
        run for run in checkout.records() if (run["arm"], run["state"]) == ("mmap", "cold")
    )["memory"]["budget_bytes"]
    assert 0.9 * 60 * 2**20 < size < 0.9 * 68 * 2**20
    # It fails again for the same reason, and measures nothing anew.
    before = checkout.records()
    assert NO_ROOM in checkout.run("--config", study, fails=True)
    assert checkout.records() == before
