from pathlib import Path

from coldbench.common.job import job
from coldbench.publish.study import publish_summary

with job(snakemake.log[0]):
    publish_summary(
        Path(snakemake.params.results),
        [Path(receipt) for receipt in snakemake.input.receipts],
        runs=Path(snakemake.output.runs),
        summary=Path(snakemake.output.summary),
    )
