"""The matrix as CSV: plain numbers in base units (bytes, seconds, tokens/s, shares of 1)."""

import csv
import io
from collections.abc import Iterable, Sequence

from coldbench.publish.figures import word
from coldbench.publish.matrix import Matrix


def matrix_csv(matrix: Matrix) -> str:
    """Return one row a (model, workload, arm), with median, min, max and n of every metric.

    Figures that could not be had, or that a failed identity check withholds, are empty.
    """
    columns = dict.fromkeys(column for table in matrix.tables for column in table.columns)
    states = dict.fromkeys(column.state for column in columns)
    header = ["model", "workload", "arm", "identity", "md5", "identity_reason"]
    header += ["identity_equal", "identity_runs"]
    for state in states:
        header += [f"{state}_{name}" for name in ("runs_ok", "runs", "attempts", "status")]
    for column in columns:
        name = f"{column.state}_{column.metric}"
        header += [f"{name}_{statistic}" for statistic in ("median", "min", "max", "n")]
    rows = []
    for table in matrix.tables:
        for row in table.rows:
            cell = row.identity
            line = [table.model, table.workload, row.arm]
            if cell is None:
                line += ["not checked", "", ""]
            else:
                line += ["ok" if cell.ok else "failed", cell.md5 or "", cell.reason]
            rate = cell.rate if cell is not None else None
            line += ["", ""] if rate is None else [str(rate.equal), str(rate.runs)]
            for state in states:
                runs = row.runs.get(state)
                line += (
                    ["0", "0", "0", ""]
                    if runs is None
                    else [str(runs.ok), str(runs.total), str(runs.attempts), runs.status]
                )
            for column in columns:
                figure = row.figures.get(column)
                line += (
                    ["", "", "", "0"]
                    if figure is None
                    else [
                        _number(figure.median),
                        _number(figure.low),
                        _number(figure.high),
                        str(figure.n),
                    ]
                )
            rows.append(line)
    return _csv(header, rows)


def comparisons_csv(matrix: Matrix) -> str:
    """Return one row a comparison, A/A controls (kind `control`) after the claims.

    `status` is the verdict in the fixed words, `verdict` in those of the metric.
    """
    header = ["kind", "comparison", "model", "workload", "state", "metric", "treatment", "control"]
    header += ["margin", "ratio", "low", "high", "n", "aa_spread", "status", "verdict"]
    header += ["exploratory", "needs", "p", "adjusted_p", "sign_flip_p", "tost_p", "reason"]
    rows = []
    for row in (*matrix.claims, *matrix.controls):
        claim, verdict, ratio = row.claim, row.verdict, row.verdict.ratio
        rows.append(
            [
                "control" if row.control else "claim",
                claim.name,
                claim.model,
                claim.workload,
                claim.state,
                claim.metric,
                claim.treatment,
                claim.control,
                _number(claim.margin),
                *(
                    ["", "", "", "0"]
                    if ratio is None
                    else [
                        _number(ratio.ratio),
                        _number(ratio.low),
                        _number(ratio.high),
                        str(ratio.n),
                    ]
                ),
                _number(row.aa_spread),
                verdict.status,
                word(row),
                "yes" if verdict.exploratory else "no",
                _number(verdict.blocks),
                _number(verdict.p),
                _number(verdict.adjusted_p),
                _number(verdict.sign_flip_p),
                _number(verdict.tost_p),
                verdict.reason,
            ]
        )
    return _csv(header, rows)


def drift_csv(matrix: Matrix) -> str:
    """Return one row a test for drift; `change` is relative, a run or a block later."""
    header = ["model", "workload", "state", "metric", "effect", "runs", "change", "low", "high"]
    header += ["p", "adjusted_p", "found"]
    rows = []
    for test in (test for table in matrix.tables for test in table.drifts):
        slope = test.slope
        figures = (slope.change, slope.low, slope.high, slope.p) if slope else (None,) * 4
        rows.append(
            [
                *(test.model, test.workload, test.state, test.metric, test.effect, str(test.runs)),
                *map(_number, (*figures, test.adjusted_p)),
                "yes" if test.found else "no",
            ]
        )
    return _csv(header, rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
