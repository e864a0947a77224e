import csv
import io

import pytest
from fabricated_runs import cells_of, fabricated_run

from coldbench.analysis.identity import IdentityCell
from coldbench.analysis.stats import Ratio, Verdict
from coldbench.analysis.summary import tidy
from coldbench.analysis.verdicts import VerdictRow, verdicts
from coldbench.publish.csv import comparisons_csv, matrix_csv
from coldbench.publish.figures import interval, ratio, spread, unit_for, word
from coldbench.publish.markdown import markdown
from coldbench.publish.matrix import Column, Figure, matrix
from coldbench.study.plan import Claim

MIB = 2**20
FAILED = IdentityCell("f" * 32, False, "text differs from eager (ffffffff against 0a1b2c3d)")


def ok(*arms):
    return {("gemma", arm): IdentityCell("0a1b2c3d4e5f", True) for arm in arms}


def claim(treatment="lazy", control="eager", metric="prompt_tps", state="cold", **more):
    settings = {"name": "laziness", "model": "gemma", "workload": "pp512", "margin": 0.03}
    settings |= {"better": None}
    return Claim(treatment=treatment, control=control, metric=metric, state=state, **settings | more)


def study_runs():
    """Three cold and three warm blocks of a lazy and an eager arm and of a twin of the latter."""
    rates = {"lazy": [620.0, 640.0, 630.0], "eager": [1700.0, 1720.0, 1650.0]}
    rates["twin"] = [1690.0, 1725.0, 1660.0]
    runs = []
    for arm, cold in rates.items():
        lazy = arm == "lazy"
        for block, rate in enumerate(cold, start=1):
            metrics = {"prompt_tps": rate, "generation_tps": 93.0}
            runs.append(
                fabricated_run(
                    arm,
                    block,
                    metrics=metrics,
                    peak_rss=(173 if lazy else 649) * MIB,
                    read=(24 if lazy else 642) * MIB + 4096 * block,
                    faults=9864 if lazy else block,
                    table_after=(10 if lazy else 512) * MIB,
                )
            )
            warm = {"prompt_tps": 1700.0 + 10 * block, "generation_tps": 92.0 + block / 2}
            runs.append(fabricated_run(arm, block, state="warm", metrics=warm, read=0))
    return runs


def laid_out(runs, *, claims=(), aa_pairs=(), arms=("lazy", "eager"), identity=None, **more):
    frame = tidy(runs, cells_of(runs))
    settings = {
        "title": "Lazy tables",
        "models": {"gemma": "gemma", "qwen": "qwen"},
        "workloads": {"pp512": "pp512"},
    }
    return matrix(
        frame=frame,
        verdicts=verdicts(frame, claims, aa_pairs),
        identity=ok(*arms) if identity is None else identity,
        arms=arms,
        **(settings | more),
    )


def grid(text, heading):
    """The cells of the table under a heading, by rows."""
    part = text.split(f"{heading}\n", 1)[1]
    lines = [line for line in part.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# --- the whole document -------------------------------------------------------------------------

EXPECTED_HEAD = """\
# Lazy tables

Host: cpu Xeon, 2 CPUs; kernel 6.18; **read_ahead_kb 8192**.
"""

EXPECTED_TABLE = """\
## gemma

| arm   | identity    |   cold runs |       cold prompt, t/s |   cold generation, t/s |   cold peak RSS, MiB |   cold bytes read, MiB |   cold major faults |   cold table resident after, % |   warm runs |       warm prompt, t/s |   warm generation, t/s |   warm bytes read, MiB |
|:------|:------------|------------:|-----------------------:|-----------------------:|---------------------:|-----------------------:|--------------------:|-------------------------------:|------------:|-----------------------:|-----------------------:|-----------------------:|
| lazy  | 0a1b2c3d ok |           3 |    630.0 (620.0–640.0) |                   93.0 |                173.0 |       24.0 (24.0–24.0) |               9,864 |                            2.0 |           3 |    1,720 (1,710–1,730) |       93.0 (92.5–93.5) |                      0 |
| eager | 0a1b2c3d ok |           3 |    1,700 (1,650–1,720) |                   93.0 |                649.0 |    642.0 (642.0–642.0) |             2 (1–3) |                          100.0 |           3 |    1,720 (1,710–1,730) |       93.0 (92.5–93.5) |                      0 |
| twin  | 0a1b2c3d ok |           3 |    1,690 (1,660–1,725) |                   93.0 |                649.0 |    642.0 (642.0–642.0) |             2 (1–3) |                          100.0 |           3 |    1,720 (1,710–1,730) |       93.0 (92.5–93.5) |                      0 |

- eager and twin are the same in effect.
"""  # noqa: E501


def test_the_whole_document():
    document = laid_out(
        study_runs(),
        claims=[claim(), claim(metric="read_bytes"), claim(metric="read_bytes", state="warm")],
        aa_pairs=[("eager", "twin")],
        arms=("lazy", "eager", "twin"),
        hosts=[{"cpu": "Xeon, 2 CPUs", "kernel": "6.18", "read_ahead_kb": "8192"}],
        notes={"gemma": ["eager and twin are the same in effect."]},
    )
    text = markdown(document)
    print(text)
    assert text.startswith(EXPECTED_HEAD)
    assert EXPECTED_TABLE in text


# --- what stands in a row -----------------------------------------------------------------------
