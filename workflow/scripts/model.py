from pathlib import Path

from coldbench.common.files import write_json
from coldbench.common.folders import cache_folder
from coldbench.common.job import job
from coldbench.sources.models import prepare_model
from coldbench.study.lock import Pins
from coldbench.study.models import Model

with job(snakemake.log[0]):
    spec = Model.model_validate_json(snakemake.params.spec)
    # Whether the lock may move is not a parameter of the rule: it changes no model.
    locked = snakemake.config.get("locked", False)
    study = Path(snakemake.params.study)
    record = prepare_model(
        spec, cache_folder(), Pins(study, "models", snakemake.wildcards.model, locked)
    )
    write_json(Path(snakemake.output[0]), record | {"stamp": snakemake.params.stamp})
