# Models: made, fetched or found; verified; their header read.


rule model:
    output:
        f"{RESULTS}/models/{{model}}.json",
    log:
        f"{RESULTS}/logs/models/{{model}}.log",
    conda:
        "../../envs/prepare.yaml"
    # Downloads take no core from a build, which wants all; how many go on at once says the profile.
    threads: 0
    resources:
        fetches=1,
    params:
        spec=model_spec,
        stamp=model_stamp,
        study=str(PLAN.path),
    message:
        "model {wildcards.model}"
    script:
        "../scripts/model.py"
