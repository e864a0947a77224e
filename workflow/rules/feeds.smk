# Feeds: what our kernels read beside the model, computed from its header before anything is measured.


rule feed:
    input:
        model=rules.model.output,
        tokens=feed_tokens,
        tokenizer=feed_tokenizer,
    output:
        f"{RESULTS}/feeds/{{model}}/{{workload}}.json",
    log:
        f"{RESULTS}/logs/feeds/{{model}}/{{workload}}.log",
    conda:
        "../../envs/prepare.yaml"
    params:
        spec=feed_spec,
    message:
        "feed: {wildcards.model}, {wildcards.workload}"
    script:
        "../scripts/feed.py"
