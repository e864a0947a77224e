from pathlib import Path

from coldbench.common.job import job
from coldbench.publish.study import publish_matrix
from coldbench.study.specs import Presentation

with job(snakemake.log[0]):
    publish_matrix(
        Presentation.model_validate_json(snakemake.params.presentation),
        Path(snakemake.params.results),
        [Path(receipt) for receipt in snakemake.input.receipts],
        markdown_file=Path(snakemake.output.markdown),
        csv_file=Path(snakemake.output.csv),
        verdicts_file=Path(snakemake.output.verdicts),
        drift_file=Path(snakemake.output.drift),
    )
