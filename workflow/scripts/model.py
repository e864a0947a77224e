from pathlib import Path

from coldbench.common.files import write_json
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.sources.models import prepare_model
from coldbench.study.schema import Model

with job(snakemake.log[0]):
    spec = Model.model_validate_json(snakemake.params.spec)
    write_json(Path(snakemake.output[0]), prepare_model(spec, cache_folder()))
