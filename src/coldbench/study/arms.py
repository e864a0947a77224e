"""Expanding the arms of a study: the matrix, arms written out, and the A/A pair."""

import itertools
import re
from collections.abc import Iterable

from pydantic import ValidationError

from coldbench.study.faults import Faults
from coldbench.study.scalars import NAME_LENGTH, NAME_PATTERN, Environment
from coldbench.study.schema import Level, ListedArm, StudyFile
from coldbench.study.specs import Arm, alike
from coldbench.study.treatment import Expected, Host, Intent
from coldbench.study.words import Place

_FIELD = re.compile(r"\{([^{}]*)\}")
_TAKEN = {"build": "builds", "model": "models", "workload": "workloads"}
"""Names that say more of an arm than a factor could, and the sections that give their levels."""


def expanded_arms(file: StudyFile, faults: Faults) -> tuple[Arm, ...]:
    """Return the arms of a study in the file's order, with at least one A/A pair.

    A study that lists none gets one: the last arm is then a twin of the first comparison's
    control, or of the first arm. Raises ColdbenchError naming line and key.
    """
    return _Arms(file, faults).all()


class _Arms:
    def __init__(self, file: StudyFile, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    def all(self) -> tuple[Arm, ...]:
        for factor in _TAKEN.keys() & self._file.factors.keys():
            raise self._faults.fail(
                ("factors", factor),
                f"is no factor of one's own: its levels stand under {_TAKEN[factor]}; rename it",
            )
        arms = [*self._matrix_arms()]
        for index, listed in enumerate(self._file.arms.include):
            arms.append(self._listed_arm(listed, index, arms))
        if not arms:
            raise self._faults.fail(("arms", "exclude"), "excludes every arm of the matrix")
        names: set[str] = set()
        for arm in arms:
            self._faults.known(("arms",), "build", arm.build, self._file.builds)
            if arm.name in names:
                raise self._faults.fail(("arms",), f"two arms are called {arm.name}; rename one")
            names.add(arm.name)
        if same := alike(arms):
            raise self._faults.fail(
                ("arms",),
                f"{same[1].name} and {same[0].name} are the same build, arguments and environment; "
                f"for an A/A pair write {{name: {same[1].name}, aa_of: {same[0].name}}}",
            )
        if all(arm.twin_of is None for arm in arms):
            arms.append(self._twin(arms))
        return tuple(arms)

    def _twin(self, arms: list[Arm]) -> Arm:
        """Return a twin of the arm that the first comparison is made against, else of the first."""
        named = {arm.name: arm for arm in arms}
        control = next((each.control for each in self._file.comparisons.values()), "")
        original = named.get(control, arms[0])
        endings = itertools.chain(["-again"], (f"-again{count}" for count in itertools.count(2)))
        names = (f"{original.name[: NAME_LENGTH - len(end)]}{end}" for end in endings)
        name = next(name for name in names if name not in named)
        return original.model_copy(update={"name": name, "twin_of": original.name})

    def _matrix_arms(self) -> Iterable[Arm]:
        arms = self._file.arms
        for factor, levels in arms.matrix.items():
            place = ("arms", "matrix", factor)
            if len(set(levels)) != len(levels):
                raise self._faults.fail(place, "a level stands twice; remove one")
            if factor == "build":
                for level in levels:
                    self._faults.known(place, "build", level, self._file.builds)
            else:
                self._faults.known(place, "factor", factor, self._file.factors)
                for level in levels:
                    self._faults.known(
                        place, f"level of {factor}", level, self._file.factors[factor]
                    )
        for index, excluded in enumerate(arms.exclude):
            for factor, level in excluded.items():
                where: Place = ("arms", "exclude", index, factor)
                self._faults.known(where, "factor of the matrix", factor, arms.matrix)
                self._faults.known(where, f"level of {factor}", level, arms.matrix[factor])
        if not arms.matrix:
            return
        for combination in itertools.product(*arms.matrix.values()):
            chosen = dict(zip(arms.matrix, combination, strict=True))
            if any(excluded.items() <= chosen.items() for excluded in arms.exclude):
                continue
            yield self._matrix_arm(chosen)

    def _matrix_arm(self, chosen: dict[str, str]) -> Arm:
        args: list[str] = []
        intent, expect = Intent(), Expected()
        environment: Environment = {}
        host = Host()
        budget = None
        for factor, level_name in chosen.items():
            if factor == "build":
                continue
            level: Level = self._file.factors[factor][level_name]
            place = ("factors", factor, level_name)
            for build in level.for_build:
                self._faults.known((*place, "for_build"), "build", build, self._file.builds)
            for build in level.expect.for_build:
                self._faults.known(
                    (*place, "expect", "for_build"), "build", build, self._file.builds
                )
            args += level.for_build.get(chosen["build"], level.args)
            try:
                if chosen["build"] not in level.for_build:
                    intent = intent.merged(level.intent)
            except ValidationError as error:
                said = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise self._faults.fail(
                    (*place, "intent"), f"with the other factors': {said}"
                ) from None
            expect = expect.merged(level.expect.on(chosen["build"]))
            environment |= level.environment
            host = host.merged(level.host)
            budget = level.budget or budget
        return Arm(
            name=self._matrix_name(chosen),
            build=chosen["build"],
            args=tuple(args),
            intent=intent,
            expect=expect,
            environment=environment,
            host=host,
            budget=budget,
            levels=chosen,
        )

    def _matrix_name(self, chosen: dict[str, str]) -> str:
        place = ("arms", "name")
        if (template := self._file.arms.name) is None:
            rest = [f"{factor}-{level}" for factor, level in chosen.items() if factor != "build"]
            name = "-".join([chosen["build"], *rest])
        else:
            for field in _FIELD.findall(template):
                if field not in chosen:
                    raise self._faults.fail(
                        place,
                        f"{{{field}}} does not fit; use the factors in braces: {', '.join(chosen)}",
                    )
            name = _FIELD.sub(lambda field: chosen[field[1]], template)
        if len(name) > NAME_LENGTH or not re.fullmatch(NAME_PATTERN, name):
            raise self._faults.fail(
                place,
                f"calls an arm {name[:80]!r}; names are up to {NAME_LENGTH} letters, digits, _, +, "
                "- and inner dots",
            )
        return name

    def _listed_arm(self, listed: ListedArm, index: int, before: list[Arm]) -> Arm:
        place = ("arms", "include", index)
        if listed.aa_of is not None:
            named = {arm.name: arm for arm in before}
            self._faults.known((*place, "aa_of"), "arm", listed.aa_of, named)
            original = named[listed.aa_of]
            if original.twin_of is not None:
                raise self._faults.fail(
                    place, f"{listed.aa_of} is itself a twin; name {original.twin_of}"
                )
            return original.model_copy(update={"name": listed.name, "twin_of": original.name})
        assert listed.build is not None  # the schema saw to it
        self._faults.known((*place, "build"), "build", listed.build, self._file.builds)
        return Arm(
            name=listed.name,
            build=listed.build,
            args=listed.args,
            intent=listed.intent,
            expect=listed.expect,
            environment=listed.environment,
            host=listed.host,
            budget=listed.budget,
            levels=self._listed_levels(listed, place),
        )

    def _listed_levels(self, listed: ListedArm, place: Place) -> dict[str, str]:
        assert listed.build is not None  # the schema saw to it
        for factor, level in listed.levels.items():
            where = (*place, "levels", factor)
            if factor in _TAKEN:
                raise self._faults.fail(where, "is not for an arm to say; remove it")
            if self._file.arms.matrix:
                self._faults.known(where, "factor of the matrix", factor, self._file.arms.matrix)
            if factor in self._file.factors:
                self._faults.known(where, f"level of {factor}", level, self._file.factors[factor])
        return {"build": listed.build, **listed.levels}
