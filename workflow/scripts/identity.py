from pathlib import Path

from coldbench.common.files import read_json, read_records
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.measure.block import check_identity
from coldbench.study.plan import IdentitySpec

with job(snakemake.log[0]):
    check_identity(
        IdentitySpec.model_validate_json(snakemake.params.spec),
        model=read_json(Path(snakemake.input.model[0])),
        builds=read_records(snakemake.input.builds),
        cache=cache_folder(),
        results=Path(snakemake.params.results),
        receipt=Path(snakemake.output[0]),
    )
