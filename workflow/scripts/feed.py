from pathlib import Path

from coldbench.common.files import read_json, read_records, write_json
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.sources import built, models
from coldbench.sources.traces.prepared import prepare_feed
from coldbench.study.specs import FeedSpec

with job(snakemake.log[0]):
    record = prepare_feed(
        FeedSpec.model_validate_json(snakemake.params.spec),
        read_json(Path(snakemake.input.model[0]), models.RECORD_KEYS),
        read_records(snakemake.input.tokenizer, built.RECORD_KEYS),
        cache_folder(),
    )
    write_json(Path(snakemake.output[0]), record)
