# Analysis: all raw records of the study in one file, and the tidy summary of its cells.


rule summary:
    input:
        receipts=receipts(),
    output:
        runs=f"{RESULTS}/runs.jsonl",
        summary=f"{RESULTS}/summary.csv",
    log:
        f"{RESULTS}/logs/summary.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        results=RESULTS,
    message:
        "summary"
    script:
        "../scripts/summary.py"
