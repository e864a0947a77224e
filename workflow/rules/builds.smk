# Builds: engine source patched and compiled, or ready binaries taken in; and our own launcher.


rule build:
    output:
        f"{RESULTS}/builds/{{build}}.json",
    log:
        f"{RESULTS}/logs/builds/{{build}}.log",
    conda:
        "../../envs/prepare.yaml"
    # A compiler takes every core, and builds share objects: one after the other.
    threads: workflow.cores
    params:
        spec=build_spec,
        stamp=build_stamp,
        ref_stamp=build_ref_stamp,
        study=str(PLAN.path),
    message:
        "build {wildcards.build}"
    script:
        "../scripts/build.py"


rule launcher:
    output:
        f"{RESULTS}/launcher.json",
    log:
        f"{RESULTS}/logs/launcher.log",
    conda:
        "../../envs/prepare.yaml"
    message:
        "launcher"
    script:
        "../scripts/launcher.py"
