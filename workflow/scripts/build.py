from pathlib import Path

from coldbench.common.files import write_json
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.sources.builds import prepare_build
from coldbench.study.builds import Build
from coldbench.study.lock import Pins

with job(snakemake.log[0]):
    spec = Build.model_validate_json(snakemake.params.spec)
    name = snakemake.wildcards.build
    locked = snakemake.config.get("locked", False)
    entry = Pins(Path(snakemake.params.study), "builds", name, locked)
    record = prepare_build(name, spec, cache_folder(), entry)
    write_json(Path(snakemake.output[0]), record | {"ref_stamp": snakemake.params.ref_stamp})
