# coldbench: cold- and warm-cache experiments on inference engines, one study file at a time.
#
#   snakemake --cores all                              the study named in config/config.yaml
#   snakemake --cores all --config study=NAME_OR_PATH  another one
#
# Stopped or killed? The same command again goes on where it stopped.

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/builds.smk"
include: "workflow/rules/feeds.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/publish.smk"


rule all:
    default_target: True
    input:
        rules.matrix.output,
        rules.summary.output,
        rules.provenance.output,
        rules.outcome.output,
        extras(),


onstart:
    begin()
