from pathlib import Path

from coldbench.common.files import read_records, write_json
from coldbench.common.job import job
from coldbench.publish.provenance import provenance
from coldbench.sources import built, models

with job(snakemake.log[0]):
    write_json(
        Path(snakemake.output[0]),
        provenance(
            Path(snakemake.params.study),
            models=read_records(snakemake.input.models, models.RECORD_KEYS),
            builds=read_records(snakemake.input.builds, built.RECORD_KEYS),
            results=Path(snakemake.params.results),
            receipts=[Path(receipt) for receipt in snakemake.input.receipts],
        ),
    )
