from pathlib import Path

from coldbench.common.files import write_json
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.sources.builds import prepare_build
from coldbench.study.schema import Build

with job(snakemake.log[0]):
    spec = Build.model_validate_json(snakemake.params.spec)
    record = prepare_build(snakemake.wildcards.build, spec, cache_folder())
    write_json(Path(snakemake.output[0]), record)
