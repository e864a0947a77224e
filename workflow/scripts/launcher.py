from pathlib import Path

from coldbench.common.files import write_json
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.measure.native import launcher_program

with job(snakemake.log[0]):
    write_json(Path(snakemake.output[0]), {"launcher": str(launcher_program(cache_folder()))})
