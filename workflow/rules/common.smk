# What the rules share: the plan of the study, and where its files stand.
#
#   RESULTS/models/MODEL.json, builds/BUILD.json   records of what was prepared (the cache has it)
#   RESULTS/feeds/MODEL/WORKLOAD.json              records of what our kernels read beside the model
#   RESULTS/raw/MODEL/WORKLOAD/block-NNN.jsonl     every run, append-only, not owned by Snakemake
#   RESULTS/blocks/MODEL/WORKLOAD/NNN.json         receipt: this block is complete
#   RESULTS/until/MODEL/WORKLOAD.json              receipts of blocks that were added for precision
#   RESULTS/identity/MODEL.json                    receipt of the identity check

import os
import re
from pathlib import Path

from snakemake.exceptions import WorkflowError

from coldbench.common.errors import ColdbenchError
from coldbench.common.locks import keep_alone
from coldbench.drivers.registry import check_study
from coldbench.sources import stamps
from coldbench.study.lock import Pins, check_packages, read_lock
from coldbench.study.settings import open_study

try:
    SETTINGS, PLAN = open_study(config, workflow.basedir)
    check_study(PLAN)
    read_lock(PLAN.path)  # what is wrong with it is told once, and here
    config["locked"] = SETTINGS.locked  # the scripts' too: true of a command line is text
except ColdbenchError as error:
    raise WorkflowError(str(error)) from None

# A conda environment (--sdm conda) has the libraries; coldbench itself is this checkout's.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(workflow.basedir) / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
RESULTS = f"{SETTINGS.results}/{PLAN.name}"


wildcard_constraints:
    model="|".join(map(re.escape, PLAN.models)),
    build="|".join(map(re.escape, PLAN.builds)),
    workload="|".join(map(re.escape, PLAN.workloads)),
    block=r"\d{3}",


def begin():
    """Keep other workflows out of this study's results while this one lives; check the lock."""
    keep_alone(Path(RESULTS))
    check_packages(PLAN.path, locked=SETTINGS.locked)


def model_spec(wildcards):
    return PLAN.models[wildcards.model].model_dump_json(exclude={"label"})


def model_stamp(wildcards):
    name = wildcards.model
    record = Path(RESULTS, "models", f"{name}.json")
    return stamps.model_stamp(PLAN.models[name], Pins(PLAN.path, "models", name), record)


def build_spec(wildcards):
    return PLAN.builds[wildcards.build].model_dump_json(exclude={"label", "like"})


def build_stamp(wildcards):
    return stamps.build_stamp(PLAN.builds[wildcards.build])


def build_ref_stamp(wildcards):
    name = wildcards.build
    record = Path(RESULTS, "builds", f"{name}.json")
    return stamps.build_ref_stamp(PLAN.builds[name], Pins(PLAN.path, "builds", name), record)


def feed_spec(wildcards):
    return PLAN.feed(wildcards.workload).model_dump_json()


def feed_tokens(wildcards):
    """Return the file of the user's that a feed is computed from, if there is one."""
    return PLAN.feed(wildcards.workload).files


def feed_tokenizer(wildcards):
    """Return the record of the build whose tokenizer a feed needs, if it needs one."""
    return expand(f"{RESULTS}/builds/{{build}}.json", build=PLAN.feed(wildcards.workload).builds)


def feed_of(model, workload):
    """Return the record of what a workload is fed; nothing where it needs none."""
    return [f"{RESULTS}/feeds/{model}/{workload}.json"] if PLAN.feed(workload) else []


def block_feed(wildcards):
    return feed_of(wildcards.model, wildcards.workload)


def identity_feed(wildcards):
    return feed_of(wildcards.model, PLAN.file.identity.workload)


def block_spec(wildcards):
    return PLAN.block(wildcards.model, wildcards.workload, int(wildcards.block)).model_dump_json()


def until_spec(wildcards):
    return PLAN.until(wildcards.model, wildcards.workload).model_dump_json()


def identity_spec(wildcards):
    return PLAN.identity(wildcards.model).model_dump_json()


def presentation(wildcards):
    return PLAN.presentation().model_dump_json()


def block_receipts(wildcards):
    """Return the receipts of the fixed blocks of one model and workload."""
    folder = f"{RESULTS}/blocks/{wildcards.model}/{wildcards.workload}"
    return [f"{folder}/{block:03d}.json" for block in range(1, PLAN.blocks + 1)]


def extras():
    """Return what only some studies publish."""
    sampled = any(workload.residency_every for workload in PLAN.workloads.values())
    traced = [name for name in PLAN.workloads if (feed := PLAN.feed(name)) and feed.trace]
    return ([f"{RESULTS}/residency.md"] if sampled else []) + expand(
        f"{RESULTS}/access/{{model}}/{{workload}}.txt", model=PLAN.models, workload=traced
    )


def receipts():
    """Return the receipts of everything this study measures."""
    blocks = expand(
        f"{RESULTS}/blocks/{{model}}/{{workload}}/{{block:03d}}.json",
        model=PLAN.models,
        workload=PLAN.workloads,
        block=range(1, PLAN.blocks + 1),
    )
    until = expand(
        f"{RESULTS}/until/{{model}}/{{workload}}.json",
        model=PLAN.models,
        workload=PLAN.workloads,
    )
    identity = expand(f"{RESULTS}/identity/{{model}}.json", model=PLAN.models)
    return (
        blocks
        + (until if PLAN.file.blocks.until else [])
        + (identity if PLAN.file.identity else [])
    )
