from pathlib import Path

from coldbench.analysis.until import add_blocks
from coldbench.common.files import read_json, read_records
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.measure.block import Prepared
from coldbench.sources import built, models
from coldbench.sources.traces.prepared import read_feed
from coldbench.study.quiet import QuietSettings
from coldbench.study.specs import UntilSpec

with job(snakemake.log[0]):
    prepared = Prepared(
        model=read_json(Path(snakemake.input.model[0]), models.RECORD_KEYS),
        builds=read_records(snakemake.input.builds, built.RECORD_KEYS),
        cache=cache_folder(),
        results=Path(snakemake.params.results),
        feed=read_feed(snakemake.input.feed),
    )
    add_blocks(
        UntilSpec.model_validate_json(snakemake.params.spec),
        prepared,
        [Path(receipt) for receipt in snakemake.input.receipts],
        Path(snakemake.output[0]),
        # Not a parameter of the rule: another setting must not measure finished blocks again.
        QuietSettings.model_validate(snakemake.config),
    )
