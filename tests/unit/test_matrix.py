import csv
import io

import numpy as np
import pytest

from coldbench.analysis.identity import IdentityCell
from coldbench.analysis.summary import tidy
from coldbench.analysis.verdicts import verdicts
from coldbench.publish.csv import drift_csv, matrix_csv
from coldbench.publish.markdown import markdown
from coldbench.publish.matrix import Column, Figure, matrix
from coldbench.study.specs import Claim
from tests.unit.fabricated_runs import cells_of, fabricated_run

MIB = 2**20
FAILED = IdentityCell("f" * 32, False, "text differs from eager (ffffffff against 0a1b2c3d)")


def ok(*arms):
    return {("gemma", arm): IdentityCell("0a1b2c3d4e5f", True) for arm in arms}


def claim(treatment="lazy", control="eager", metric="prompt_tps", state="cold", **more):
    settings = {"name": "laziness", "model": "gemma", "workload": "pp512", "margin": 0.03}
    settings |= {"better": None}
    return Claim(
        treatment=treatment, control=control, metric=metric, state=state, **settings | more
    )


def memory(rss, anon=None, mapped=None):
    """The record of a peak, from MiB."""
    names = ("peak_rss_bytes", "anon_at_peak_bytes", "file_at_peak_bytes")
    sizes = (size and size * MIB for size in (rss, anon, mapped))
    return dict(zip(names, sizes, strict=True))


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
                    memory=(memory(173, 10, 163) if lazy else memory(649)),
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


def records(text):
    return list(csv.DictReader(io.StringIO(text)))


# --- the whole document -------------------------------------------------------------------------

EXPECTED = """\
# Lazy tables

Host: cpu Xeon, 2 CPUs; kernel 6.18; **read_ahead_kb 8192**.

A figure is the median (smallest–largest) over fresh processes, one a block; *runs* says how many. Cold: no page of the model was in the page cache before the start; warm: after an identical run that is not counted. *Identity* is the start of the md5 of what the arm computed: greedy text, logits or a checksum. Peak RSS is what was resident, pages of mapped files included; of these, *anonymous* is the process's own memory and *file-backed* what the kernel could drop. *Drift* is what a run later in its block, or a block later, changed in the rates of all arms alike (p after Holm's correction over the table).

## gemma

| arm   | identity    |   cold runs |    cold prompt, t/s |   cold generation, t/s |   cold peak RSS, MiB |   cold anonymous at peak, MiB |   cold file-backed at peak, MiB |   cold bytes read, MiB |   cold major faults |   cold table resident after, % |   warm runs |    warm prompt, t/s |   warm generation, t/s |   warm bytes read, MiB |
|:------|:------------|------------:|--------------------:|-----------------------:|---------------------:|------------------------------:|--------------------------------:|-----------------------:|--------------------:|-------------------------------:|------------:|--------------------:|-----------------------:|-----------------------:|
| lazy  | 0a1b2c3d ok |           3 | 630.0 (620.0–640.0) |                   93.0 |                173.0 |                          10.0 |                           163.0 |                   24.0 |               9,864 |                            2.0 |           3 | 1,720 (1,710–1,730) |       93.0 (92.5–93.5) |                      0 |
| eager | 0a1b2c3d ok |           3 | 1,700 (1,650–1,720) |                   93.0 |                649.0 |                           n/a |                             n/a |                  642.0 |             2 (1–3) |                          100.0 |           3 | 1,720 (1,710–1,730) |       93.0 (92.5–93.5) |                      0 |
| twin  | 0a1b2c3d ok |           3 | 1,690 (1,660–1,725) |                   93.0 |                649.0 |                           n/a |                             n/a |                  642.0 |             2 (1–3) |                          100.0 |           3 | 1,720 (1,710–1,730) |       93.0 (92.5–93.5) |                      0 |

Drift: warm prompt +0.6% a block (p = 0.004); warm generation +0.5% a block (p = 0.004).

- eager and twin are the same in effect.

## Comparisons

A ratio is treatment over control: exp of the mean log ratio within blocks, with its 95% paired t interval over n blocks. A difference must exceed 1% and the A/A spread at p ≤ 0.05 after Holm's correction over all comparisons and, from 6 blocks on, at sign-flip p ≤ 0.05; with fewer it is exploratory unless its interval clears 10%. Equivalence takes two one-sided tests inside the margin and 6 blocks. *Needs*: the blocks that would resolve the margin if effect and scatter stay as they are.

| comparison   | model   | state   | metric     | treatment   | control   |   ratio |   95% interval |   n |   A/A spread | verdict        |   needs | notes          |
|:-------------|:--------|:--------|:-----------|:------------|:----------|--------:|---------------:|----:|-------------:|:---------------|--------:|:---------------|
| laziness     | gemma   | cold    | prompt     | lazy        | eager     |   0.373 |    0.352–0.395 |   3 |         0.1% | slower         |         |                |
| laziness     | gemma   | cold    | bytes read | lazy        | eager     |  0.0374 |  0.0374–0.0374 |   3 |         0.0% | lower          |         |                |
| laziness     | gemma   | warm    | bytes read | lazy        | eager     |     n/a |            n/a |   0 |          n/a | not comparable |         | 0 in both arms |

## A/A controls

Here treatment and control are the same arm, so that any effect is the experiment's own. ALARM: it shows a difference that cannot be there; mistrust the comparisons beside it.

| model   | state   | metric     | treatment   | control   |   ratio |   95% interval |   n | verdict        | notes          |
|:--------|:--------|:-----------|:------------|:----------|--------:|---------------:|----:|:---------------|:---------------|
| gemma   | cold    | prompt     | twin        | eager     |   1.001 |    0.986–1.017 |   3 | no alarm       |                |
| gemma   | cold    | generation | twin        | eager     |   1.000 |    1.000–1.000 |   3 | no alarm       |                |
| gemma   | cold    | bytes read | twin        | eager     |   1.000 |    1.000–1.000 |   3 | no alarm       |                |
| gemma   | warm    | prompt     | twin        | eager     |   1.000 |    1.000–1.000 |   3 | no alarm       |                |
| gemma   | warm    | generation | twin        | eager     |   1.000 |    1.000–1.000 |   3 | no alarm       |                |
| gemma   | warm    | bytes read | twin        | eager     |     n/a |            n/a |   0 | not comparable | 0 in both arms |
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
    assert markdown(document) == EXPECTED


# --- what stands in a row -----------------------------------------------------------------------


def rows_of(document, heading="## gemma"):
    header, _, *rows = grid(markdown(document), heading)
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def test_failed_runs_are_counted_and_say_why():
    runs = [run for run in study_runs() if (run.arm, run.state, run.block) != ("lazy", "cold", 2)]
    runs.append(fabricated_run("lazy", 2, status="void", reason="exit 0 without a result"))
    runs.append(
        fabricated_run("lazy", 2, attempt=2, status="failed", reason="killed: illegal instruction")
    )
    document = laid_out(runs)
    row = rows_of(document)["lazy"]
    assert row["cold runs"] == "2 of 3 ok [1]"
    assert row["cold prompt, t/s"] == "625.0 (620.0–630.0)"
    assert row["warm runs"] == "3"
    assert document.tables[0].numbered_notes == (
        "lazy, cold: 1 of 4 runs failed: killed: illegal instruction; "
        "1 of 4 runs void: exit 0 without a result",
    )


def test_an_arm_that_never_ran_well_has_its_status_for_figures_and_the_matrix_goes_on():
    runs = [run for run in study_runs() if (run.arm, run.state) != ("lazy", "cold")]
    runs += [
        fabricated_run("lazy", block, status="refused", reason="build old does not know --lazy")
        for block in (1, 2, 3)
    ]
    document = laid_out(runs)
    rows = rows_of(document)
    assert rows["lazy"]["cold runs"] == "0 of 3 ok [1]"
    cold = {rows["lazy"][name] for name in rows["lazy"] if name.startswith("cold ")}
    assert cold == {"0 of 3 ok [1]", "refused"}
    assert rows["eager"]["cold prompt, t/s"] == "1,700 (1,650–1,720)"
    assert "- [1] lazy, cold: 3 of 3 runs refused: build old does not know --lazy" in markdown(
        document
    )


def test_an_arm_whose_identity_failed_has_no_figure_anywhere_but_the_reason():
    document = laid_out(
        study_runs(),
        claims=[claim(), claim("twin", "eager")],
        arms=("lazy", "eager", "twin"),
        identity=ok("eager", "twin") | {("gemma", "lazy"): FAILED},
    )
    row = rows_of(document)["lazy"]
    assert row["identity"] == "FAILED [1]"
    figures = {row[name] for name in row if name not in {"arm", "identity"}}
    assert figures == {"withheld", "3"}
    assert document.tables[0].numbered_notes == (f"identity: {FAILED.reason}",)
    verdict, other = (row.verdict for row in document.claims)
    assert (verdict.status, verdict.ratio) == ("not comparable", None)
    assert verdict.reason == "identity of lazy failed"
    assert other.ratio is not None
    (line,) = [row for row in records(matrix_csv(document)) if row["arm"] == "lazy"]
    assert line["cold_prompt_tps_median"] == ""
    assert line["identity_reason"] == FAILED.reason


def test_arms_that_failed_for_one_reason_share_its_note():
    failed = {("gemma", arm): FAILED for arm in ("lazy", "eager")}
    document = laid_out(study_runs(), identity=failed)
    assert [row["identity"] for row in rows_of(document).values()] == ["FAILED [1]"] * 2
    assert len(document.tables[0].numbered_notes) == 1


def test_an_arm_whose_identity_was_not_checked_says_so():
    document = laid_out(study_runs(), identity=ok("lazy"))
    assert rows_of(document)["eager"]["identity"] == "not checked"


def test_peak_rss_is_never_compared_without_its_split():
    document = laid_out(study_runs(), claims=[claim(metric="peak_rss_bytes")])
    (row,) = document.claims
    assert row.verdict.reason == ("of these: lazy 10 MiB anonymous + 163 MiB of files, eager n/a")
    assert row.verdict.ratio.ratio == pytest.approx(173 / 649)


def test_runs_that_exceeded_their_budget_say_what_they_reached():
    runs = [run for run in study_runs() if (run.arm, run.state) != ("lazy", "cold")]
    runs += [
        fabricated_run(
            "lazy",
            block,
            status="over budget",
            reason=f"killed: out of memory under a 64 MiB budget (peak RSS {60 + block} MiB)",
        )
        for block in (1, 2, 3)
    ]
    document = laid_out(runs, claims=[claim()])
    row = rows_of(document)["lazy"]
    assert row["cold runs"] == "0 of 3 ok [1]"
    assert row["cold prompt, t/s"] == "exceeded the budget"
    assert document.tables[0].numbered_notes == (
        "lazy, cold: 3 of 3 runs exceeded the budget: killed: out of memory under a 64 MiB budget "
        "(peak RSS 61–63 MiB)",
    )
    (claimed,) = document.claims
    assert claimed.verdict.reason == "exceeded the budget: lazy 0 of 3 ok (over budget)"


def test_runs_on_a_busy_machine_are_marked():
    runs = [
        run.model_copy(update={"notes": ["disturbed: load"]})
        if (run.arm, run.state, run.block) == ("lazy", "cold", 2)
        else run
        for run in study_runs()
    ]
    document = laid_out(runs)
    row = rows_of(document)["lazy"]
    assert (row["cold runs"], row["warm runs"]) == ("3 [1]", "3")
    assert document.tables[0].numbered_notes == (
        "lazy, cold: 1 of 3 measured on a busy machine: no verdict rests on them",
    )
    (line,) = [row for row in records(matrix_csv(document)) if row["arm"] == "lazy"]
    assert line["cold_runs_ok"] == line["cold_runs"] == "3"


def test_drift_is_told_or_that_there_is_none():
    def drifting(step, noise):
        random = np.random.default_rng(1)
        arms = ["lazy", "eager"]
        return [
            fabricated_run(
                arm,
                block,
                position=place,
                metrics={
                    "prompt_tps": 100 * (1 + step) ** (2 * block + place) * random.normal(1, noise)
                },
            )
            for block in range(1, 9)
            for place, arm in enumerate(arms if block % 2 else arms[::-1], start=1)
        ]

    assert "\n\nDrift: none found.\n" in markdown(laid_out(drifting(0, 0.01)))
    text = markdown(laid_out(drifting(-0.03, 0.001)))
    assert "Drift: cold prompt -3.0% a run (p = " in text
    assert "; cold prompt -5.9% a block (p = " in text
    assert "Drift: not tested, too few runs." in markdown(laid_out(drifting(0, 0.01)[:2]))
    rows = records(drift_csv(laid_out(drifting(-0.03, 0.001))))
    assert [(row["effect"], row["found"]) for row in rows] == [
        ("position", "yes"),
        ("trend", "yes"),
    ]
    assert float(rows[0]["change"]) == pytest.approx(-0.03, abs=0.002)


def test_a_figure_of_fewer_runs_than_the_others_shows_its_number():
    runs = study_runs()
    runs[0] = runs[0].model_copy(update={"io": runs[0].io.model_copy(update={"read_bytes": None})})
    row = rows_of(laid_out(runs))["lazy"]
    assert row["cold bytes read, MiB"] == "24.0 n=2"
    assert row["cold runs"] == "3"


def test_what_could_not_be_had_is_not_available_and_nothing_read_is_zero():
    runs = [
        fabricated_run("lazy", block, metrics={"prompt_tps": 5.0}, peak_rss=None, read=0)
        for block in (1, 2)
    ]
    row = rows_of(laid_out(runs))["lazy"]
    assert row["cold peak RSS, MiB"] == "n/a"
    assert row["cold bytes read, MiB"] == "0"


def test_columns_follow_what_the_workload_and_the_model_have():
    runs = [
        fabricated_run("lazy", 1, state="warm", metrics={"gathers": 7.0}, table_after=None),
        fabricated_run("eager", 1, state="warm", metrics={"gathers": 9.5}, table_after=None),
    ]
    document = laid_out(runs, units={"gathers": "1/s"})
    assert document.tables[0].columns == (
        Column("warm", "read_bytes"),
        Column("warm", "gathers", "1/s"),
    )
    assert rows_of(document)["eager"]["warm gathers, 1/s"] == "9.50"


def test_an_arm_of_the_plan_without_a_record_still_has_a_row():
    row = rows_of(laid_out(study_runs(), arms=("lazy", "eager", "later")))["later"]
    assert (row["cold runs"], row["cold prompt, t/s"]) == ("0", "n/a")


def test_every_model_and_workload_with_records_has_a_table_in_the_plans_order():
    runs = study_runs()
    runs += [fabricated_run("lazy", 1, model="qwen", workload=name) for name in ("tg", "pp512")]
    document = laid_out(
        runs,
        models={"qwen": "Qwen stand-in", "gemma": "gemma", "absent": "absent"},
        workloads={"pp512": "pp512", "tg": "Generation"},
    )
    assert [(table.model, table.workload) for table in document.tables] == [
        ("qwen", "pp512"),
        ("qwen", "tg"),
        ("gemma", "pp512"),
    ]
    text = markdown(document)
    assert "## qwen: Qwen stand-in\n\n### pp512\n" in text
    assert "### tg: Generation\n" in text


def test_a_figure_keeps_base_units_and_its_number_of_runs():
    table = laid_out(study_runs()).tables[0]
    figures = table.rows[0].figures
    assert figures[Column("cold", "prompt_tps")] == Figure(630.0, 620.0, 640.0, 3)
    assert figures[Column("cold", "peak_rss_bytes")] == Figure(173 * MIB, 173 * MIB, 173 * MIB, 3)


def test_the_order_of_the_records_does_not_change_a_byte():
    runs = study_runs()
    settings = {"claims": [claim()], "aa_pairs": [("eager", "twin")]}
    here, there = laid_out(runs, **settings), laid_out(runs[::-1], **settings)
    assert markdown(here) == markdown(there)
    assert matrix_csv(here) == matrix_csv(there)


def test_labels_and_reasons_cannot_break_the_table_or_turn_into_markup():
    reason = "said `a|b`\nand <b>, see __init__ [1]"
    runs = [*study_runs(), fabricated_run("lazy", 4, status="failed", reason=reason)]
    text = markdown(laid_out(runs, title="a|b\n# c", models={"gemma": "x * y"}))
    assert text.startswith("# a\\|b # c\n")
    assert "## gemma: x \\* y\n" in text
    note = r"- [1] lazy, cold: 1 of 4 runs failed: said \`a\|b\` and \<b\>, see \_\_init\_\_ \[1\]"
    assert note in text
