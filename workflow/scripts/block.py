from pathlib import Path

from coldbench.common.files import read_json, read_records
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.measure.block import Prepared, measure_block
from coldbench.sources import built, models
from coldbench.sources.traces.prepared import read_feed
from coldbench.study.quiet import QuietSettings
from coldbench.study.specs import BlockSpec

with job(snakemake.log[0]):
    prepared = Prepared(
        model=read_json(Path(snakemake.input.model[0]), models.RECORD_KEYS),
        builds=read_records(snakemake.input.builds, built.RECORD_KEYS),
        cache=cache_folder(),
        results=Path(snakemake.params.results),
        feed=read_feed(snakemake.input.feed),
    )
    spec = BlockSpec.model_validate_json(snakemake.params.spec)
    # Not a parameter of the rule: another setting must not measure finished blocks again.
    quiet = QuietSettings.model_validate(snakemake.config)
    measure_block(spec, prepared, Path(snakemake.output[0]), quiet)
