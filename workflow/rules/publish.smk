# Publishing: the comparison matrix, and where every figure in it comes from.


rule matrix:
    input:
        receipts=receipts(),
    output:
        markdown=f"{RESULTS}/matrix.md",
        csv=f"{RESULTS}/matrix.csv",
        verdicts=f"{RESULTS}/verdicts.csv",
        drift=f"{RESULTS}/drift.csv",
    log:
        f"{RESULTS}/logs/matrix.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        results=RESULTS,
        presentation=presentation,
    message:
        "matrix"
    script:
        "../scripts/matrix.py"


rule residency:
    # Only of studies that look while the engine runs: see `extras`.
    input:
        receipts=receipts(),
    output:
        csv=f"{RESULTS}/residency.csv",
        markdown=f"{RESULTS}/residency.md",
        plot=f"{RESULTS}/residency.svg",
    log:
        f"{RESULTS}/logs/residency.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        results=RESULTS,
        presentation=presentation,
    message:
        "residency over time"
    script:
        "../scripts/residency.py"


rule access:
    # Only of workloads that gather by a trace: see `extras`.
    input:
        model=rules.model.output,
        tokens=feed_tokens,
        tokenizer=feed_tokenizer,
        # After it, so that nothing is computed beside a measurement.
        receipts=receipts(),
    output:
        text=f"{RESULTS}/access/{{model}}/{{workload}}.txt",
        plot=f"{RESULTS}/access/{{model}}/{{workload}}.svg",
    log:
        f"{RESULTS}/logs/access/{{model}}/{{workload}}.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        spec=feed_spec,
    message:
        "access pattern: {wildcards.model}, {wildcards.workload}"
    script:
        "../scripts/access.py"


rule provenance:
    input:
        models=expand(rules.model.output, model=PLAN.models),
        builds=expand(rules.build.output, build=PLAN.builds),
        receipts=receipts(),
    output:
        f"{RESULTS}/provenance.json",
    log:
        f"{RESULTS}/logs/provenance.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        results=RESULTS,
        study=str(PLAN.path),
        # Its text is in the file, labels and all.
        presentation=presentation,
    message:
        "provenance"
    script:
        "../scripts/provenance.py"


rule outcome:
    # The last: it fails where a cell is incomplete, after the tables that say so are written.
    input:
        rules.matrix.output,
        rules.summary.output,
        rules.provenance.output,
        receipts=receipts(),
    output:
        f"{RESULTS}/outcome.json",
    log:
        f"{RESULTS}/logs/outcome.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        results=RESULTS,
        presentation=presentation,
    message:
        "outcome"
    script:
        "../scripts/outcome.py"
