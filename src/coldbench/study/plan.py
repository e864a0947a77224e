"""Expanding a study file into what will run: arms, blocks and claims, without touching the disk."""

import itertools
from pathlib import Path

from coldbench.study.arms import expanded_arms
from coldbench.study.builds import Build
from coldbench.study.faults import Faults
from coldbench.study.metrics import known, printed_by
from coldbench.study.models import Model
from coldbench.study.pivots import Layout, laid_out
from coldbench.study.reading import read_study
from coldbench.study.schema import STATES, Comparison, Pivot, StudyFile
from coldbench.study.specs import (
    Arm,
    BlockSpec,
    Claim,
    FeedSpec,
    IdentitySpec,
    PivotSpec,
    Presentation,
    PublishedTable,
    UntilSpec,
)
from coldbench.study.words import Place
from coldbench.study.workloads import (
    BatchedBench,
    Checkable,
    Command,
    Completion,
    Gather,
    GemmaCpp,
    Logits,
    Stream,
    TextTokens,
    Workload,
)


class Plan:
    """A validated study, expanded.

    `name` is the study file's stem and names its results folder; `arms`, `models`, `builds` (with
    `like` resolved; only those that an arm uses) and `workloads` (measured ones) are in the
    file's order. `others` are the plans at the study's other scales.
    """

    def __init__(self, path: Path, scale: str | None = None) -> None:
        """Read and expand the study file at `path`; raises ColdbenchError naming line and key.

        Without a `scale` it is the one that the file selects, and the others are checked as well.
        """
        self.path = path
        self.name = path.stem
        self.file: StudyFile = read_study(path, scale)
        self.faults = Faults(path, scale)
        self.arms: tuple[Arm, ...] = expanded_arms(self.file, self.faults)
        self.models: dict[str, Model] = self.file.models
        self.builds: dict[str, Build] = self._builds()
        self.workloads: dict[str, Workload] = self._workloads()
        self.claims: tuple[Claim, ...] = self._claims()
        self.pivots: tuple[PivotSpec, ...] = self._pivots()
        self._check_identity()
        names = [] if scale else [name for name in self.file.scales if name != self.file.scale]
        self.others = tuple(Plan(path, name) for name in names)

    @property
    def blocks(self) -> int:
        """Return how many blocks each (model, workload) has."""
        return max(self.file.blocks.cold, self.file.blocks.warm)

    @property
    def aa_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the A/A pairs as (arm, twin)."""
        return tuple((arm.twin_of, arm.name) for arm in self.arms if arm.twin_of is not None)

    @property
    def without_identity(self) -> tuple[str, ...]:
        """Return the arms that the identity check leaves out."""
        return self.file.identity.without if self.file.identity else ()

    def block(self, model: str, workload: str, block: int) -> BlockSpec:
        """Return block number `block` (from 1) of a (model, workload)."""
        counts = {"cold": self.file.blocks.cold, "warm": self.file.blocks.warm}
        return BlockSpec(
            study=self.name,
            model=model,
            workload=workload,
            driven=_unlabelled(self.workloads[workload]),
            arms=self.arms,
            block=block,
            states=tuple(state for state in STATES if block <= counts[state]),
            seed=self.file.seed,
        )

    def until(self, model: str, workload: str) -> UntilSpec | None:
        """Return what to add to the fixed blocks of a (model, workload), or None for nothing."""
        until = self.file.blocks.until
        if until is None:
            return None
        first = self.block(model, workload, self.blocks + 1)
        return UntilSpec(
            first=first,
            claims=tuple(
                claim for claim in self.claims if (claim.model, claim.workload) == (model, workload)
            ),
            half_width=until.half_width,
            last=until.max,
        )

    def identity(self, model: str) -> IdentitySpec | None:
        """Return the identity check of a model, or None where the study has none."""
        check = self.file.identity
        if check is None:
            return None
        workload = self.file.workloads[check.workload]
        assert isinstance(workload, Checkable)  # _check_identity saw to it
        return IdentitySpec(
            study=self.name,
            model=model,
            workload=check.workload,
            driven=workload.model_copy(update={"label": None}),
            mutant=workload.mutated(check.mutant).model_copy(update={"label": None}),
            # A twin is the same build and flags: its text is the repeat of every study with one.
            arms=tuple(arm for arm in self.arms if arm.name not in check.without),
            group_by=check.group_by,
            repeats=check.repeats,
        )

    def feed(self, workload: str) -> FeedSpec | None:
        """Return what a workload has to be fed beside the model, or None for nothing."""
        match driven := self.file.workloads[workload]:
            case Gather():
                return FeedSpec(trace=driven.trace)
            case Stream():
                return FeedSpec()
        return None

    def presentation(self) -> Presentation:
        """Return what the tables of this study show beside the figures."""
        labels = {arm.name: arm.label for arm in self.file.arms.include}
        return Presentation(
            study=self.name,
            title=self.file.title or self.name,
            models={name: model.label or name for name, model in self.models.items()},
            workloads={name: work.label or name for name, work in self.workloads.items()},
            arms={arm.name: labels.get(arm.name) or arm.name for arm in self.arms},
            claims=self.claims,
            aa_pairs=self.aa_pairs,
            group_by=self.file.identity.group_by if self.file.identity else (),
            units={
                name: metric.unit
                for work in self.workloads.values()
                if isinstance(work, Command)
                for name, metric in work.metrics.items()
            },
            pivots=self.pivots,
            published=tuple(
                PublishedTable(source=each.source, rows=each.rows) for each in self.file.published
            ),
        )

    def _builds(self) -> dict[str, Build]:
        used = {arm.build for arm in self.arms}
        for name, workload in self.file.workloads.items():
            if isinstance(workload, Gather) and isinstance(workload.trace, TextTokens):
                place = ("workloads", name, "trace", "tokenizer")
                self.faults.known(place, "build", workload.trace.tokenizer, self.file.builds)
                used.add(workload.trace.tokenizer)
        return {name: self._build(name, ()) for name in self.file.builds if name in used}

    def _build(self, name: str, seen: tuple[str, ...]) -> Build:
        build = self.file.builds[name]
        place = ("builds", name)
        if name in seen:
            raise self.faults.fail(
                place, f"`like` goes round in a circle: {' -> '.join((*seen, name))}"
            )
        given = build.model_dump(exclude_unset=True, exclude={"like", "label"})
        if build.like is not None:
            self.faults.known((*place, "like"), "build", build.like, self.file.builds)
            base = self._build(build.like, (*seen, name))
            given = base.model_dump(exclude_unset=True, exclude={"label"}) | given
        merged = Build.model_validate(given)
        if merged.source is None:
            raise self.faults.fail(place, "needs a source (or `like`)")
        ready = hasattr(merged.source, "binaries")
        if merged.pins and not hasattr(merged.source, "git"):
            raise self.faults.fail((*place, "pins"), "need a git source to be merged onto")
        if ready and (merged.patches or merged.cmake or merged.targets):
            raise self.faults.fail(place, "ready binaries take no patches, cmake or targets")
        if not ready and not merged.targets:
            raise self.faults.fail(place, "needs targets: the programs to build")
        return merged

    def _workloads(self) -> dict[str, Workload]:
        check = self.file.identity
        if check is not None:
            self.faults.known(
                ("identity", "workload"), "workload", check.workload, self.file.workloads
            )
        measured = {
            name: workload
            for name, workload in self.file.workloads.items()
            # A text is generated for the check alone; a kernel prints its checksum in every run.
            if check is None
            or name != check.workload
            or not isinstance(workload, Completion | Logits)
        }
        for name, workload in measured.items():
            if isinstance(workload, Logits):
                raise self.faults.fail(
                    ("workloads", name),
                    "llama-results prints no figures; it serves as the workload of `identity`",
                )
        if not measured:
            raise self.faults.fail(("workloads",), "needs one beside the identity check's")
        return measured

    def _claims(self) -> tuple[Claim, ...]:
        arms = [arm.name for arm in self.arms]
        claims: list[Claim] = []
        for name, comparison in self.file.comparisons.items():
            place = ("comparisons", name)
            self.faults.known((*place, "treatment"), "arm", comparison.treatment, arms)
            self.faults.known((*place, "control"), "arm", comparison.control, arms)
            if comparison.treatment == comparison.control:
                raise self.faults.fail(
                    place, "compares an arm with itself; use aa_of for an A/A pair"
                )
            self._check_metrics(place, comparison)
            self._check_direction(place, comparison)
            claims += [
                Claim(
                    name=name,
                    model=model,
                    workload=workload,
                    state=state,
                    metric=metric,
                    treatment=comparison.treatment,
                    control=comparison.control,
                    margin=comparison.margin,
                    better=comparison.better,
                )
                for model, workload in itertools.product(self.file.models, self.workloads)
                for state in comparison.states
                if getattr(self.file.blocks, state) > 0
                for metric in comparison.metrics
                if metric in _metrics(self.workloads[workload])
            ]
        return tuple(claims)

    def _pivots(self) -> tuple[PivotSpec, ...]:
        axes: dict[str, list[str]] = {
            "model": [*self.models],
            "workload": [*self.workloads],
            "build": [*self.builds],
        }
        for arm in self.arms:
            for factor in {**self.file.arms.matrix, **arm.levels}:
                axes.setdefault(factor, [*self.file.factors.get(factor, ())])
            for factor, level in arm.levels.items():
                axes[factor] += [] if level in axes[factor] else [level]
        layout = Layout([*self.models], [*self.workloads], self.arms, axes)
        pivots = []
        for name, pivot in self.file.pivots.items():
            self._check_metrics(("pivots", name), pivot)
            states = [state for state in pivot.states if getattr(self.file.blocks, state) > 0]
            if not states:
                raise self.faults.fail(("pivots", name, "states"), "none of them is measured")
            pivots.append(laid_out(name, pivot, layout, states, self.faults))
        return tuple(pivots)

    def _check_metrics(self, place: Place, asked: Comparison | Pivot) -> None:
        if len(set(asked.metrics)) != len(asked.metrics):
            raise self.faults.fail((*place, "metrics"), "a metric stands twice; remove one")
        if len(set(asked.states)) != len(asked.states):
            raise self.faults.fail((*place, "states"), "a state stands twice; remove one")
        printed = [metric for work in self.workloads.values() for metric in _metrics(work)]
        for metric in asked.metrics:
            self.faults.known((*place, "metrics"), "metric", metric, dict.fromkeys(printed))

    def _check_direction(self, place: Place, comparison: Comparison) -> None:
        for metric in comparison.metrics:
            if comparison.better is None and known(metric).better is None:
                raise self.faults.fail(
                    place, f"needs `better`: is a higher or a lower {metric} better?"
                )

    def _check_identity(self) -> None:
        check = self.file.identity
        if check is None:
            return
        workload = self.file.workloads[check.workload]
        if not isinstance(workload, Checkable):
            raise self.faults.fail(
                ("identity", "workload"),
                "needs a workload of llama-completion, llama-results, gemma-cpp, gather or stream",
            )
        mutant: Place = ("identity", "mutant")
        if isinstance(workload, GemmaCpp) and check.repeats is None:
            raise self.faults.fail(
                ("identity",),
                "needs the key repeats: gemma.cpp chooses its kernels by their speed, so that its "
                "greedy text is not the same each time",
            )
        if isinstance(workload, Completion | Logits | GemmaCpp):
            if check.mutant is None:
                raise self.faults.fail(
                    ("identity",), "needs the key mutant: a prompt of another text"
                )
            if check.mutant == workload.prompt:
                raise self.faults.fail(mutant, "must differ from the workload's prompt")
        elif check.mutant is not None:
            raise self.faults.fail(
                mutant, f"is a prompt, and {workload.driver} mutates itself; remove it"
            )
        for name in check.without:
            self.faults.known(("identity", "without"), "arm", name, [arm.name for arm in self.arms])
        for factor in check.group_by:
            said = {factor for arm in self.arms for factor in arm.levels}
            self.faults.known(("identity", "group_by"), "factor", factor, sorted(said))


def _metrics(workload: Workload) -> list[str]:
    """Return the metrics that a workload's runs have."""
    match workload:
        case Command():
            own = [*workload.metrics]
        case Gather() | Stream():
            own = printed_by(workload.driver)
        case GemmaCpp():
            own = [*printed_by("engine"), *printed_by("tokens"), *printed_by("gemma-cpp")]
        case BatchedBench():
            own = [*printed_by("engine"), *printed_by("tokens")]
        case _:
            own = printed_by("engine")
    return [*own, *printed_by("outside")]


def _unlabelled(workload: Workload) -> Workload:
    return workload.model_copy(update={"label": None})
