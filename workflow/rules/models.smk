# Models: made, fetched or found; verified; their header read.


rule model:
    output:
        f"{RESULTS}/models/{{model}}.json",
    log:
        f"{RESULTS}/logs/models/{{model}}.log",
    params:
        spec=model_spec,
        stamp=model_stamp,
    conda:
        "../../envs/prepare.yaml"
    message:
        "model {wildcards.model}"
    script:
        "../scripts/model.py"
