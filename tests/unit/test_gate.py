"""The gate and the outcome: what fails a CI job, and what a workflow says at its end."""

import os
from pathlib import Path

import pytest

from coldbench.analysis.identity import IdentityCell
from coldbench.analysis.study import Measured
from coldbench.analysis.summary import tidy
from coldbench.cli import main
from coldbench.publish.csv import comparisons_csv
from coldbench.publish.outcome import shortfalls

from .fabricated_runs import cells_of, fabricated_run
from .test_matrix import claim, laid_out

RATES = {"eager": 100.0, "lazy": 50.0, "quick": 200.0, "same": 100.0}


def verdicts_file(folder: Path, claims, rates=RATES, failed=()):
    """Publish the verdicts of six blocks; runs of `failed` arms fail in block 2."""
    runs = [
        fabricated_run(
            arm,
            block,
            status="failed" if arm in failed and block == 2 else "ok",
            metrics={"prompt_tps": rate * (1 + 0.001 * ((block * (3 + place)) % 5))},
        )
        for place, (arm, rate) in enumerate(rates.items())
        for block in range(1, 7)
    ]
    matrix = laid_out(runs, claims=claims, aa_pairs=[("eager", "same")], arms=[*rates])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdicts.csv").write_text(comparisons_csv(matrix))
    return folder


def gate(folder, *arguments, capsys):
    try:
        main(["gate", str(folder), *arguments])
        status = 0
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_gate_lets_pass_what_is_not_forbidden(tmp_path, capsys):
    folder = verdicts_file(tmp_path / "s", [claim("quick", name="up"), claim("same", name="like")])
    assert gate(folder, capsys=capsys) == (0, "", "")


def test_a_gate_names_the_rows_that_are_forbidden_and_exits_1(tmp_path, capsys):
    claims = [claim("quick", name="up"), claim("lazy", name="down")]
    status, out, err = gate(verdicts_file(tmp_path / "s", claims), capsys=capsys)
    assert (status, err) == (1, "")
    (line,) = out.splitlines()
    assert line.startswith("down: gemma pp512 cold prompt_tps: lazy against eager: slower, ratio 0")
    status, out, _ = gate(tmp_path / "s", "--forbid", "faster", "equivalent", capsys=capsys)
    assert status == 1
    assert out.startswith("up: ")
    assert len(out.splitlines()) == 1


def test_an_incomplete_cell_does_not_pass_the_gate_and_controls_play_no_part(tmp_path, capsys):
    folder = verdicts_file(tmp_path / "s", [claim("quick")], failed=["quick", "same"])
    status, out, _ = gate(folder, capsys=capsys)
    assert status == 1
    (line,) = out.splitlines()
    assert line.endswith("not comparable: incomplete: quick 5 of 6 ok (failed)")
    assert gate(folder, "--forbid", "slower", capsys=capsys)[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory; run the study first"),
        ("", "has no column kind"),
        ("kind,comparison\nclaim,x\n", "has no column model"),
        ("\x00\xff", "has no column"),
    ],
)
def test_bad_input_is_status_2_and_one_line(tmp_path, text, said, capsys):
    if text is not None:
        (tmp_path / "verdicts.csv").write_text(text, encoding="latin-1")
    status, out, err = gate(tmp_path, capsys=capsys)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"coldbench: error: {tmp_path}/verdicts.csv: ")
    assert said in line or "cannot be read" in line


def test_a_gate_that_has_nothing_to_check_does_not_pass(tmp_path, capsys):
    status, _, err = gate(verdicts_file(tmp_path / "s", []), capsys=capsys)
    assert status == 2
    assert "holds no declared comparison" in err
    folder = verdicts_file(tmp_path / "t", [claim("quick")])
    text = (folder / "verdicts.csv").read_text()
    (folder / "verdicts.csv").write_text(text.replace(",faster,", ",fastest,"))
    status, _, err = gate(folder, capsys=capsys)
    assert status == 2
    assert "comparison 1 has no verdict ('fastest')" in err
    status, _, err = gate(folder, "--forbid", "slow", capsys=capsys)
    assert status == 2


# --- the outcome --------------------------------------------------------------------------------


def measured(runs, identity=None):
    return Measured([], [], tidy(runs, cells_of(runs)), identity or {}, 0, {})


def test_a_complete_study_and_one_over_its_budget_have_no_shortfall():
    runs = [fabricated_run("a", block) for block in (1, 2)]
    runs += [fabricated_run("b", block, status="over budget") for block in (1, 2)]
    runs += [
        fabricated_run("c", 1),
        fabricated_run("c", 2, status="void"),
        fabricated_run("c", 2, attempt=2),
    ]
    assert shortfalls(measured(runs)) == []


def test_every_incomplete_cell_and_every_failed_identity_has_its_line():
    runs = [fabricated_run("a", block) for block in (1, 2, 3)]
    runs += [
        fabricated_run("b", 1),
        fabricated_run("b", 2, status="failed", reason="killed by SIGSEGV"),
        fabricated_run("b", 3, status="over budget", reason="killed"),
        fabricated_run("c", 1, status="not cold", reason="on tmpfs"),
    ]
    failed = IdentityCell(None, False, "texts differ")
    found = shortfalls(
        measured(runs, {("gemma", "a"): failed, ("gemma", "b"): failed, ("gemma", "c"): failed})
    )
    assert found == [
        "2 cells incomplete:\n"
        "  gemma pp512 cold b: 1 of 3 ok (1 failed, 1 over budget): killed by SIGSEGV\n"
        "  gemma pp512 cold c: 0 of 3 ok (2 not measured, 1 not cold): on tmpfs",
        "3 arms without identity:\n  gemma a, b, c: texts differ",
    ]


def test_a_gate_on_verdicts_older_than_the_runs_does_not_pass(tmp_path, capsys):
    folder = verdicts_file(tmp_path / "s", [claim("quick", name="up")])
    journal = folder / "raw" / "gemma" / "pp512" / "block-007.jsonl"
    journal.parent.mkdir(parents=True)
    journal.touch()
    os.utime(journal, (1, 1))
    assert gate(folder, capsys=capsys)[0] == 0
    os.utime(journal, (2**33, 2**33))
    status, _, err = gate(folder, capsys=capsys)
    assert status == 2
    assert "older than what was measured since; run the workflow again" in err
