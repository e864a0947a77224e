from pathlib import Path

from coldbench.common.job import job
from coldbench.publish.residency import publish_residency
from coldbench.study.specs import Presentation

with job(snakemake.log[0]):
    publish_residency(
        Presentation.model_validate_json(snakemake.params.presentation),
        Path(snakemake.params.results),
        [Path(receipt) for receipt in snakemake.input.receipts],
        csv_file=Path(snakemake.output.csv),
        markdown_file=Path(snakemake.output.markdown),
        plot_file=Path(snakemake.output.plot),
    )
