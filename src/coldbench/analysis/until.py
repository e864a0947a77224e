"""Adding blocks until the intervals are as narrow as a study asks: precision ends it, no p."""

import logging
from collections.abc import Sequence
from pathlib import Path

from coldbench.analysis.study import gather
from coldbench.analysis.verdicts import unresolved
from coldbench.common.files import read_json, write_json
from coldbench.common.scratch import scratch
from coldbench.measure.block import Prepared, measure_block
from coldbench.study.quiet import QuietSettings
from coldbench.study.schema import STATES
from coldbench.study.specs import UntilSpec

log = logging.getLogger(__name__)


def add_blocks(
    spec: UntilSpec,
    prepared: Prepared,
    measured: Sequence[Path],
    receipt: Path,
    quiet: QuietSettings,
) -> None:
    """Measure further blocks of a (model, workload) until every claim's interval is narrow.

    `measured` are the receipts of its fixed blocks. An added block has the cache states in which
    some interval is still too wide. Each decision rests on the blocks before it alone, so a job
    that was interrupted comes to the same ones again and measures only what is missing. The
    receipt holds those of the added blocks, and in `ended` why no more were added.
    """
    with scratch(prepared.cache, "until") as folder:
        added: list[Path] = []
        while True:
            frame = gather(prepared.results, [*measured, *added]).frame
            wide = unresolved(frame, spec.claims, spec.half_width)
            block = spec.first.block + len(added)
            if not wide or block > spec.last:
                break
            log.info(
                "block %03d of at most %d is added: %d of %d intervals are wider than %s",
                *(block, spec.last, len(wide), len(spec.claims), f"{spec.half_width:.3g}"),
            )
            states = tuple(state for state in STATES if any(c.state == state for c in wide))
            added.append(folder / f"{block:03d}.json")
            measure_block(
                spec.first.model_copy(update={"block": block, "states": states}),
                prepared,
                added[-1],
                quiet,
            )
        write_json(
            receipt,
            {
                "model": spec.first.model,
                "workload": spec.first.workload,
                "ended": _ended(spec, [claim.name for claim in wide], len(added)),
                "blocks": [read_json(path) for path in added],
            },
        )


def _ended(spec: UntilSpec, wide: Sequence[str], added: int) -> str:
    names = ", ".join(dict.fromkeys(wide))
    why = (
        f"{spec.last} blocks were reached with wider intervals of {names}"
        if wide
        else "every interval that can be had is that narrow"
    )
    return (
        f"{spec.first.workload}: {added} blocks were added for intervals within "
        f"{100 * spec.half_width:.3g}%: {why}"
    )
