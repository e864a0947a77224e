"""What a study will run, and about what it costs: the output of `coldbench plan`."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from tabulate import tabulate

from coldbench.analysis.stats import CLEAR, ENOUGH, FEWEST, blocks_for
from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded
from coldbench.common.text import visible
from coldbench.measure.residency import model_files
from coldbench.sources.standin import size_of
from coldbench.sources.url import plain_address
from coldbench.study.builds import BinariesSource, Build, FolderSource, GitSource, SdistSource
from coldbench.study.lock import read_lock
from coldbench.study.models import (
    HubSource,
    Model,
    PathSource,
    PypiFileSource,
    StandIn,
    StandInSource,
    Table,
    UrlSource,
)
from coldbench.study.plan import Plan
from coldbench.study.specs import Arm, alike
from coldbench.study.workloads import Workload

# Rough figures of a two-core machine; they serve the estimates alone.
READ_BYTES_PER_S = 1e9
RUN_S = 2.0
TOKEN_S = 0.01
FIRST_BUILD_S = 420.0
KERNELS_BUILD_S = 10.0
NEXT_BUILD_S = 30.0
NOISE = 0.02
"""The standard deviation of a run that the warnings assume, relative."""

TREE_BYTES = 2 * 2**30
PROGRAMS_BYTES = 64 * 2**20
FEW_ROWS = 1024
"""Of which every table may be: what a sparse one takes."""


def forecast(plan: Plan) -> str:
    """Return the study's models, builds, arms, cells, blocks, runs, disk and time as text.

    Nothing is fetched, built, written or measured; of `path` models the size is looked up.
    """
    counts, until = plan.file.blocks, plan.file.blocks.until
    lanes = len(plan.models) * len(plan.workloads)
    states = sum(count > 0 for count in (counts.cold, counts.warm))
    cold, warm = (lanes * len(plan.arms) * count for count in (counts.cold, counts.warm))
    identity = _identity_runs(plan)
    locked = read_lock(plan.path).models
    sizes = {
        name: sum(file.size for file in locked[name].files)
        if name in locked and isinstance(model.source, HubSource)
        else _model_bytes(model)
        for name, model in plan.models.items()
    }
    compiled = [b for b in plan.builds.values() if not isinstance(b.source, BinariesSource)]
    engines = [build for build in compiled if not isinstance(build.source, FolderSource)]
    trees = len({(str(build.source), str(build.cmake)) for build in engines})
    unknown = [name for name, size in sizes.items() if size is None]
    made = [
        _allocated(model, sizes[name] or 0)
        for name, model in plan.models.items()
        if not isinstance(model.source, PathSource)
    ]
    disk = sum(made) + TREE_BYTES * trees + PROGRAMS_BYTES * len(engines)
    building = FIRST_BUILD_S * trees + NEXT_BUILD_S * (len(engines) - trees)
    building += KERNELS_BUILD_S * (len(compiled) - len(engines))
    reading = sum(size or 0 for size in sizes.values()) / len(sizes) / READ_BYTES_PER_S
    running = RUN_S + sum(map(_generating_s, plan.workloads.values())) / len(plan.workloads)
    measuring = (cold + 2 * warm) * (running + reading) + identity * RUN_S
    least = "at least " if unknown else ""
    rows = [
        *_each("models", {n: _described(m, sizes[n]) for n, m in plan.models.items()}),
        *_each("builds", {name: _build(build) for name, build in plan.builds.items()}),
        *_each(
            "workloads",
            {name: " ".join((work.driver, *work.args)) for name, work in plan.workloads.items()},
        ),
        *_each("arms", {arm.name: _arm(arm) for arm in plan.arms}),
        (
            "cells",
            str(lanes * states * len(plan.arms)),
            f"{len(plan.models)} models x {len(plan.workloads)} workloads x {states} cache states"
            f" x {len(plan.arms)} arms",
        ),
        (
            "blocks",
            str(lanes * plan.blocks),
            f"for each model and workload: the states of one share it; {counts.cold} cold, "
            f"{counts.warm} warm"
            + (f", and up to {until.max} if intervals are wide" if until else ""),
        ),
        ("runs", str(cold + 2 * warm + identity), _runs(cold, warm, identity)),
        ("claims", str(len(plan.claims)), ", ".join(plan.file.comparisons)),
        (
            "disk",
            f"{least}{disk / 2**30:.1f} GiB",
            "in the cache, less what is there already"
            + (f"; without {', '.join(unknown)}, of unknown size" if unknown else ""),
        ),
        (
            "time",
            f"{least}{(building + measuring) / 60:.0f} min",
            f"very roughly: {building / 60:.0f} building, {measuring / 60:.0f} measuring, as small "
            "models take; less what is there already",
        ),
    ]
    title = f"study {plan.name} ({plan.path})"
    table = tabulate(rows, tablefmt="plain", disable_numparse=True)
    said = [*_refused(plan, sizes), *_warnings(plan)]
    warned = [f"warning: {warning}" for warning in said]
    return visible("\n\n".join([title, table, *(["\n".join(warned)] if warned else [])]))


def _refused(plan: Plan, sizes: Mapping[str, int | None]) -> Iterator[str]:
    """Yield why arms cannot be measured on models whose size in bytes is known."""
    for name, size in sizes.items():
        try:
            arms = [arm.with_model(size) for arm in plan.arms] if size else []
        except ColdbenchError as error:
            yield f"models.{name}: {error}"
            continue
        if same := alike(arms):
            yield (
                f"models.{name}: arms {same[0].name} and {same[1].name} come to one budget; "
                "leave one out"
            )


def _warnings(plan: Plan) -> list[str]:
    """Return what is not there, needs leave, or cannot be shown by the study's blocks."""
    until = plan.file.blocks.until
    margins: dict[tuple[int, str, float], dict[str, None]] = {}
    for claim in plan.claims:
        blocks = until.max if until else getattr(plan.file.blocks, claim.state)
        margins.setdefault((blocks, claim.state, claim.margin), {})[claim.name] = None
    said = [f"{place}: there is no {path}" for place, path in _missing(plan)]
    if changing := [arm.name for arm in plan.arms if arm.host.given]:
        said.append(f"{', '.join(changing)}: change host settings; run with --config set_host=true")
    tight: dict[tuple[int, str], dict[str, None]] = {}
    for (blocks, state, margin), names in margins.items():
        what = f"{state}, {', '.join(names)}: {blocks} block{'s' if blocks > 1 else ''}"
        needs = blocks_for(margin, NOISE)
        resolving = "no number of blocks resolves" if needs is None else f"{needs} resolve"
        assumed = f"{resolving} the margin of {100 * margin:.3g}% at {NOISE:.0%} noise a run"
        if blocks < FEWEST:
            said.append(f"{what} cannot give a verdict, which takes {FEWEST}; {assumed}")
        elif blocks < ENOUGH:
            said.append(
                f"{what} cannot show equivalence, and a difference below {CLEAR:.0%} is "
                f"exploratory; {assumed}"
            )
        elif needs is None or blocks < needs:
            said.append(f"{what} cannot resolve the margin; {assumed}")
        if blocks == ENOUGH:
            tight.setdefault((blocks, state), {}).update(names)
    said += [
        f"{state}, {', '.join(names)}: {blocks} blocks cannot afford one reversed pair: at "
        f"{NOISE:.0%} noise a run a true 5% effect is claimed in 80% of studies, with 8 blocks in "
        "99%"
        for (blocks, state), names in tight.items()
    ]
    return said


def _missing(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the user's own files that the study names and that are not there."""
    for name, model in plan.models.items():
        if isinstance(model.source, PathSource) and not expanded(model.source.path).exists():
            yield f"models.{name}", model.source.path
    for name, build in plan.builds.items():
        match build.source:
            case BinariesSource(binaries=folder) | FolderSource(folder=folder):
                if not expanded(folder).exists():
                    yield f"builds.{name}", folder
        for patch in build.patches or ():
            if not expanded(patch).exists():
                yield f"builds.{name}.patches", patch
    for name in plan.file.workloads:
        feed = plan.feed(name)
        for file in feed.files if feed else ():
            if not Path(file).exists():
                yield f"workloads.{name}.trace", file


def _generating_s(workload: Workload) -> float:
    """Return about how long the tokens take that a workload's arguments ask for."""
    asked = dict(itertools.pairwise(workload.args))
    tokens = next((asked[flag] for flag in ("-ntg", "-n") if flag in asked), "0")
    return TOKEN_S * int(tokens) if tokens.isdecimal() else 0.0


def _allocated(model: Model, size: int) -> int:
    """Return what a file of `size` bytes takes on the disk: a sparse table takes nothing."""
    match model.source:
        case StandInSource(standin=StandIn(table=Table(sparse=True) as table) as standin):
            few = table.model_copy(update={"rows": min(table.rows, FEW_ROWS)})
            return size_of(standin.model_copy(update={"table": few}))
    return size


def _described(model: Model, size: int | None) -> str:
    label = f" ({model.label})" if model.label else ""
    return f"{_model(model)}, {_size(size)}{label}"


def _each(title: str, lines: dict[str, str]) -> list[tuple[str, str, str]]:
    return [
        (title if index == 0 else "", name, text)
        for index, (name, text) in enumerate(lines.items())
    ]


def _identity_runs(plan: Plan) -> int:
    check = plan.file.identity
    if check is None:
        return 0
    arms = [arm for arm in plan.arms if arm.name not in check.without]
    groups = {tuple(arm.levels.get(factor) for factor in check.group_by) for arm in arms}
    if check.repeats is not None:
        return len(plan.models) * (len(arms) * check.repeats + len(groups))
    return len(plan.models) * (len(arms) + 2 * len(groups))


def _runs(cold: int, warm: int, identity: int) -> str:
    parts = [(cold, "cold"), (warm, "warm"), (warm, "to prime warm ones"), (identity, "identity")]
    return ", ".join(f"{count} {name}" for count, name in parts if count)


def _model_bytes(model: Model) -> int | None:
    match model.source:
        case StandInSource(standin=standin):
            return size_of(standin)
        case PathSource(path=path):
            try:
                return sum(file.stat().st_size for file in model_files(expanded(path)))
            except (ColdbenchError, OSError):
                return None
    return None


def _size(size: int | None) -> str:
    return "size known once it is here" if size is None else f"{size / 2**20:.0f} MiB"


def _model(model: Model) -> str:
    match model.source:
        case StandInSource(standin=standin):
            return f"stand-in {standin.architecture}"
        case PypiFileSource(pypi=pypi, file=file):
            return f"{file} of {pypi}"
        case PathSource(path=path):
            return path
        case UrlSource(url=url):
            return plain_address(url)
        case HubSource(hf=asked):
            return f"{asked.file or asked.pattern} of {asked.repo} at {asked.revision}"


def _build(build: Build) -> str:
    match build.source:
        case GitSource(git=source):
            pins = [f"{len(build.pins)} pins"] if build.pins else []
            return " + ".join([f"{source.url} at {source.ref}", *pins, *(build.patches or ())])
        case (
            SdistSource(pypi=origin) | FolderSource(folder=origin) | BinariesSource(binaries=origin)
        ):
            return " + ".join([origin, *(build.patches or ())])
    return "no source"


def _arm(arm: Arm) -> str:
    if arm.twin_of is not None:
        return f"the same as {arm.twin_of} (A/A pair)"
    environment = [f"{key}={value}" for key, value in arm.environment.items()]
    match arm.budget:
        case float(share):
            budget = [f"in {share:.0%} of the model"]
        case int(size):
            budget = [f"in {size / 2**20:.0f} MiB"]
        case _:
            budget = []
    intent = [f"({name}: {value})" for name, value in arm.intent.given.items()]
    host = [f"(host {name}: {value})" for name, value in arm.host.given.items()]
    return " ".join([arm.build, *environment, *arm.args, *intent, *host, *budget])
