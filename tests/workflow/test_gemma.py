"""gemma.cpp through the whole workflow, on engines that err as the real one and its patches may."""

from pathlib import Path
from typing import Any

from tests.gemma import write_engine, write_weights

from .conftest import Checkout

MIB = 2**20


def study(folder: Path) -> dict[str, Any]:
    engines = {
        # like the real one, it gives another text now and then
        "baseline": f"LOAD_S = 0.2; COUNTER = {str(folder / 'counter')!r}",
        "patched": "END = 12",
        "wrong": "OTHER = True",
        "deaf": "IGNORES_MAP = True",
    }
    for name, settings in engines.items():
        write_engine(folder / name, settings)
    return {
        "models": {"weights": {"source": {"path": "w.sbs"}}},
        "builds": {name: {"source": {"binaries": name}} for name in engines},
        "workloads": {
            "request": {
                "driver": "gemma-cpp",
                "prompt": "one two three",
                "tokens": 12,
                "args": ["--num_threads", "1"],
                "time_limit": "20s",
            }
        },
        "arms": [
            {"name": "read", "build": "baseline", "args": ["--map", "0"]},
            {"name": "again", "aa_of": "read"},
            *(
                {"name": name, "build": name, "args": ["--map", "1"]}
                for name in ("patched", "wrong", "deaf")
            ),
        ],
        "blocks": {"cold": 3},
        "comparisons": {
            "patch": {
                "treatment": "patched",
                "control": "read",
                "metrics": ["first_token_s", "generation_tps"],
            }
        },
        "identity": {"workload": "request", "mutant": "four five", "repeats": 8},
    }


def test_gemma_cpp_is_measured_and_its_texts_are_counted(checkout: Checkout) -> None:
    write_weights(checkout.folder / "w.sbs", 32 * MIB)
    said = checkout.run("--config", checkout.study(study(checkout.folder)), fails=True)
    records = {(run["arm"], run["state"], run["block"]): run for run in checkout.records()}

    one = records["read", "cold", 1]
    assert one["status"] == "ok", one["reason"]
    assert 0.2 < one["load_s"] < one["metrics"]["first_token_s"] < one["exit"]["wall_s"]
    assert (one["tokens"], one["effective"]) == (12, {"prompt_tokens": 4})
    assert one["delivered"] == {"weights read": True, "memory of its own": True}
    assert one["io"]["rchar_bytes"] > 32 * MIB
    assert records["patched", "cold", 1]["delivered"] == {
        "weights not read": True,
        "mapped memory": True,
    }
    deaf = records["deaf", "cold", 1]
    assert deaf["status"] == "not delivered"
    assert "weights not read: expected less than 16.0 MiB asked of read(2)" in deaf["reason"]

    rows = checkout.table()
    assert {arm: row["identity"] for arm, row in rows.items()} == {
        **dict.fromkeys(("read", "again", "patched", "deaf"), "ok"),
        "wrong": "failed",
    }
    assert rows["wrong"]["identity_reason"].startswith("gave the text in 0 of 8 runs, against ")
    assert rows["wrong"]["cold_first_token_s_median"] == ""
    assert float(rows["patched"]["cold_first_token_s_median"]) > 0
    assert float(rows["read"]["cold_first_token_s_median"]) > 0.2
    assert (rows["wrong"]["identity_equal"], rows["wrong"]["identity_runs"]) == ("0", "8")
    assert rows["patched"]["md5"] == rows["read"]["md5"]
    table = (checkout.results / "toy" / "matrix.md").read_text()
    assert f"{rows['read']['md5'][:8]} ok (8 of 8)" in table
    assert "This engine does not give the same text each time." in table
    assert "wrong: gave the text in 0 of 8 runs" in said

    texts = [run for run in checkout.records() if run["state"] == "unmeasured"]
    assert len(texts) == 5 * 8 + 1
    # in rounds: the baseline's own scatter is that of the same minutes
    assert [run["arm"] for run in texts[6:11]] == ["read", "again", "patched", "wrong", "deaf"]
    assert len({run["digest"] for run in texts if run["arm"] in {"read", "again"}}) == 3
