"""The files a study publishes, from its receipts and journals."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from coldbench.analysis.in_force import in_force
from coldbench.analysis.notes import notes
from coldbench.analysis.study import gather
from coldbench.analysis.summary import summarise
from coldbench.analysis.verdicts import verdicts
from coldbench.common.files import write_text
from coldbench.publish.csv import comparisons_csv, drift_csv, matrix_csv
from coldbench.publish.markdown import markdown
from coldbench.publish.matrix import matrix
from coldbench.publish.pivots import needed, pivot_tables
from coldbench.records import Run
from coldbench.study.specs import Presentation

log = logging.getLogger(__name__)


def publish_summary(results: Path, receipts: Sequence[Path], *, runs: Path, summary: Path) -> None:
    """Write all raw records as one JSON-lines file, and the tidy summary (one row a figure)."""
    measured = gather(results, receipts)
    if measured.left_out:
        log.info(
            "%d records are of content or arms that the study no longer names; they are kept, and "
            "left out of the tables",
            measured.left_out,
        )
    write_text(runs, "".join(run.model_dump_json(by_alias=True) + "\n" for run in measured.runs))
    write_text(summary, summarise(measured.frame).to_csv(index=False))


def publish_matrix(
    presentation: Presentation,
    results: Path,
    receipts: Sequence[Path],
    *,
    markdown_file: Path,
    csv_file: Path,
    verdicts_file: Path,
    drift_file: Path,
) -> None:
    """Write the comparison matrix as Markdown and CSV, the verdicts and tests for drift as CSV."""
    measured = gather(results, receipts, presentation.group_by)
    table = matrix(
        title=presentation.title,
        frame=measured.frame,
        verdicts=verdicts(measured.frame, presentation.claims, presentation.aa_pairs),
        identity=measured.identity,
        models=presentation.models,
        workloads=presentation.workloads,
        arms=list(presentation.arms),
        hosts=[_host(runs) for runs in _by_machine(measured.present)],
        notes=_joined(notes(measured.present), measured.ended),
        units=presentation.units,
        published=presentation.published,
        settings=in_force(measured.present),
        besides=needed(presentation.pivots, presentation.units),
    )
    pivots = pivot_tables(presentation.pivots, table.tables, presentation.units)
    write_text(markdown_file, markdown(table, pivots))
    write_text(csv_file, matrix_csv(table))
    write_text(verdicts_file, comparisons_csv(table))
    write_text(drift_file, drift_csv(table))


def _joined(*notes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    models = {model for each in notes for model in each}
    return {model: [text for each in notes for text in each.get(model, ())] for model in models}


def _by_machine(runs: Sequence[Run]) -> list[list[Run]]:
    machines: defaultdict[tuple[tuple[str, object], ...], list[Run]] = defaultdict(list)
    for run in runs:
        machines[tuple(sorted(run.host.items()))].append(run)
    return [*machines.values()]


def _host(runs: Sequence[Run]) -> dict[str, str]:
    """Return the facts of a machine that a reader of a table needs to see.

    What arms set for themselves is told beside the machine's own value.
    """
    facts = runs[0].host
    memory = facts.get("memory_bytes")
    shown = {
        "CPU": facts.get("cpu_model"),
        "cores": facts.get("logical_cpus"),
        "memory": None if memory is None else f"{memory / 2**30:.0f} GiB",
        "kernel": facts.get("kernel"),
        "filesystem": facts.get("filesystem"),
        "device": facts.get("device"),
        "read_ahead_kb": facts.get("disk_read_ahead_kb"),
    }
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        values = dict.fromkeys(str(run.settings[key]) for run in runs if key in run.settings)
        own = facts.get("transparent_hugepage") if key not in shown else shown[key]
        shown[key] = f"{own} (set for some arms: {', '.join(values)})"
    return {name: "n/a" if value is None else str(value) for name, value in shown.items()}
