from pathlib import Path

from coldbench.common.job import job
from coldbench.publish.outcome import conclude
from coldbench.study.specs import Presentation

with job(snakemake.log[0]):
    conclude(
        Presentation.model_validate_json(snakemake.params.presentation),
        Path(snakemake.params.results),
        [Path(receipt) for receipt in snakemake.input.receipts],
        Path(snakemake.output[0]),
    )
