# Measuring: one job at a time on the whole machine, each a block of interleaved runs.
#
# The receipts are Snakemake's; the raw records are append-only and not, so that no rerun, failure
# or kill ever deletes a measurement.


rule block:
    input:
        launcher=rules.launcher.output,
        model=rules.model.output,
        builds=expand(rules.build.output, build=PLAN.builds),
        feed=block_feed,
    output:
        f"{RESULTS}/blocks/{{model}}/{{workload}}/{{block}}.json",
    log:
        f"{RESULTS}/logs/blocks/{{model}}/{{workload}}/{{block}}.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores
    params:
        spec=block_spec,
        results=RESULTS,
    message:
        "block {wildcards.block}: {wildcards.model}, {wildcards.workload}"
    script:
        "../scripts/block.py"


rule until:
    input:
        launcher=rules.launcher.output,
        model=rules.model.output,
        builds=expand(rules.build.output, build=PLAN.builds),
        feed=block_feed,
        receipts=block_receipts,
    output:
        f"{RESULTS}/until/{{model}}/{{workload}}.json",
    log:
        f"{RESULTS}/logs/until/{{model}}/{{workload}}.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores
    params:
        spec=until_spec,
        results=RESULTS,
    message:
        "blocks until precise: {wildcards.model}, {wildcards.workload}"
    script:
        "../scripts/until.py"


rule identity:
    input:
        launcher=rules.launcher.output,
        model=rules.model.output,
        builds=expand(rules.build.output, build=PLAN.builds),
        feed=identity_feed,
    output:
        f"{RESULTS}/identity/{{model}}.json",
    log:
        f"{RESULTS}/logs/identity/{{model}}.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores
    params:
        spec=identity_spec,
        results=RESULTS,
    message:
        "identity: {wildcards.model}"
    script:
        "../scripts/identity.py"
