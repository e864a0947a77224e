from pathlib import Path

from coldbench.analysis.access import access_pattern
from coldbench.common.files import read_json, read_records, write_text
from coldbench.common.job import job
from coldbench.publish.accesstext import plot, report
from coldbench.sources import built, models
from coldbench.sources.traces.prepared import trace_of
from coldbench.study.specs import FeedSpec

with job(snakemake.log[0]):
    found = access_pattern(
        trace_of(
            FeedSpec.model_validate_json(snakemake.params.spec),
            read_json(Path(snakemake.input.model[0]), models.RECORD_KEYS),
            read_records(snakemake.input.tokenizer, built.RECORD_KEYS),
        )
    )
    write_text(Path(snakemake.output.text), report(found))
    plot(found, Path(snakemake.output.plot))
