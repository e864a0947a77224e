# Models: made, fetched or found; verified; their header read.


rule model:
    output:
        f"{RESULTS}/models/{{model}}.json",
    log:
        f"{RESULTS}/logs/models/{{model}}.log",
    conda:
        "../../envs/prepare.yaml"
    params:
        spec=model_spec,
        stamp=model_stamp,
        study=str(PLAN.path),
    message:
        "model {wildcards.model}"
    script:
        "../scripts/model.py"
