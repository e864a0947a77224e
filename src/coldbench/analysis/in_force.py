"""What each arm's runs had in force, by the engine's own log, where arms differ in it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from coldbench.records import Run
from coldbench.study.schema import STATES

MACHINE = ("read_ahead_kb", "transparent_hugepage")
"""Settings of the machine that an arm may change."""

SETTINGS = (
    *("lazy", "load_mode", "mlock", "direct_io", "offloaded", "overrides", "buffers"),
    *MACHINE,
)
"""Settings that a table shows, in its order."""

InForce = dict[str, dict[str, str]]
"""By arm: setting -> its value in words."""


def in_force(runs: Iterable[Run]) -> dict[tuple[str, str], InForce]:
    """Return by (model, workload) what was in force in each arm's measured runs.

    Settings in which all arms agree are left out, and runs that never started; of an arm whose
    runs disagree, all values are told. Sizes of buffers are spans in MiB, not memory in use.
    """
    runs = [run for run in runs if run.exit.ended != "not started"]
    changed = {(run.model, run.workload) for run in runs if run.settings}
    seen: defaultdict[tuple[str, str], defaultdict[str, list[Run]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        if run.state in STATES and (run.effective or (run.model, run.workload) in changed):
            seen[run.model, run.workload][run.arm].append(run)
    return {lane: _differing(arms) for lane, arms in seen.items()}


def _differing(arms: Mapping[str, list[Run]]) -> InForce:
    told = {
        arm: {setting: _told(setting, of_arm) for setting in SETTINGS}
        for arm, of_arm in arms.items()
    }
    kept = [
        setting for setting in SETTINGS if len({values[setting] for values in told.values()}) > 1
    ]
    return {arm: {setting: values[setting] for setting in kept} for arm, values in told.items()}


def _told(setting: str, runs: Iterable[Run]) -> str:
    seen = [_machine(run) | run.effective for run in runs]
    values = Counter(_words(found[setting]) for found in seen if found.get(setting) is not None)
    return "; ".join(value for value, _ in values.most_common())


def _machine(run: Run) -> dict[str, Any]:
    own = {"transparent_hugepage": run.host.get("transparent_hugepage")}
    return own | run.settings | {"read_ahead_kb": run.read_ahead_kb}


def _words(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{name} {size:,.0f}" for name, size in value.items())
        case list():
            return ", ".join(str(item).removesuffix(".weight") for item in value)
    return str(value)
