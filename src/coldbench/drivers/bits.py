"""Settings of llama.cpp that change the bits of what it computes.

What changes bits was found by comparing logits (llama.cpp 0c1e57098; most of it in tests/engine):
batch sizes, flash attention, the types of the KV cache and repacking, each of which sums in another
order or precision, though not on every model. Threads do where flash attention decodes far into a
context. Lazy reading, load modes and the size of the context do not. Arms whose outputs are to be
identical need these settings equal.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from coldbench.drivers.arguments import OVERRIDE, given, values
from coldbench.drivers.requested import LAYERS, THREADS
from coldbench.study.plan import Plan
from coldbench.study.specs import Arm
from coldbench.study.workloads import Completion, Logits

_FLASH_ATTENTION, _REPACK, _THREADS = "-fa", "--repack", "-t"
_SETTINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "-b": (("-b", "--batch-size"), "LLAMA_ARG_BATCH"),
    "-ub": (("-ub", "--ubatch-size"), "LLAMA_ARG_UBATCH"),
    _FLASH_ATTENTION: (("-fa", "--flash-attn"), "LLAMA_ARG_FLASH_ATTN"),
    "-ctk": (("-ctk", "--cache-type-k"), "LLAMA_ARG_CACHE_TYPE_K"),
    "-ctv": (("-ctv", "--cache-type-v"), "LLAMA_ARG_CACHE_TYPE_V"),
    _THREADS: (THREADS, "LLAMA_ARG_THREADS"),
    "-ngl": (LAYERS, "LLAMA_ARG_N_GPU_LAYERS"),
    "-ot": (OVERRIDE, "LLAMA_ARG_OVERRIDE_TENSOR"),
}
_DEFAULTS = {"-ctk": "f16", "-ctv": "f16", _REPACK: "on"}
_MEANINGS = {
    "on": ("on", "enabled", "true", "1"),
    "off": ("off", "disabled", "false", "0"),
    "auto": ("auto", "-1"),
}
"""As common/arg.cpp reads a switch's value."""

_ALWAYS = ("-b", "-ub", _FLASH_ATTENTION, "-ctk", "-ctv", _REPACK)
_SPLIT_POSITIONS = 256
"""Flash attention that decodes beyond so many positions splits them among the threads."""


def bit_settings(args: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return, by flag, the settings in a command line that change bits, or may.

    One that is not given is the engine's default, or empty where versions have other ones. A flag
    wins over its variable, as in the engine, and words of one meaning are one value. Placements
    (-ngl, -ot) may: another device, or weights that are not repacked.
    """
    found = {
        flag: (values(args, spellings) or [environment.get(variable, "")])[-1]
        for flag, (spellings, variable) in _SETTINGS.items()
    }
    attention = _meaning(found[_FLASH_ATTENTION])
    if given(args, _SETTINGS[_FLASH_ATTENTION][0]) and attention not in _MEANINGS:
        attention = "on"  # in older versions it is a switch: what follows is another flag, or none
    found[_FLASH_ATTENTION] = attention
    switches = given(args, {"--repack", "-nr", "--no-repack"})
    found[_REPACK] = _meaning(environment.get("LLAMA_ARG_REPACK", ""))
    if switches:
        found[_REPACK] = "on" if switches[-1] == "--repack" else "off"
    return {flag: value or _DEFAULTS.get(flag, "") for flag, value in found.items()}


def _meaning(word: str) -> str:
    return next((meaning for meaning, words in _MEANINGS.items() if word in words), word)


def differing(settings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return which flags arms do not share, each with its values and whose they are, in words.

    `settings` are those of `bit_settings`, by arm.
    """
    words: dict[str, str] = {}
    for flag in dict.fromkeys(flag for each in settings.values() for flag in each):
        arms: defaultdict[str, list[str]] = defaultdict(list)
        for arm, each in settings.items():
            arms[each[flag] or "default"].append(arm)
        if len(arms) > 1:
            words[flag] = "; ".join(f"{value}: {', '.join(of)}" for value, of in arms.items())
    return words


def check_groups(plan: Plan) -> None:
    """Refuse an identity check whose arms compute other bits because of their settings.

    Raises ColdbenchError naming file, flag, values and arms, and the factor to group by.
    """
    check = plan.file.identity
    if check is None:
        return
    workload = plan.file.workloads[check.workload]
    if not isinstance(workload, Completion | Logits):
        return
    groups: defaultdict[tuple[str, ...], list[Arm]] = defaultdict(list)
    for arm in plan.arms:
        if arm.name not in check.without:
            groups[tuple(arm.levels.get(factor, "") for factor in check.group_by)].append(arm)
    for arms in groups.values():
        settings = {arm.name: _of_arm(workload, arm) for arm in arms}
        for flag, words in differing(settings).items():
            if flag in _ALWAYS or (flag == _THREADS and _splits(workload, settings.values())):
                raise plan.faults.fail(
                    ("identity",),
                    f"{flag} changes the bits of what is computed, and arms that must agree differ "
                    f"in it ({words}); {_mend(plan, arms, settings, flag)}",
                )


def _of_arm(workload: Completion | Logits, arm: Arm) -> dict[str, str]:
    environment = {**workload.environment, **arm.environment}
    settings = bit_settings([*workload.args, *arm.args], environment)
    return settings | ({_REPACK: arm.intent.repack} if arm.intent.repack else {})


def _splits(workload: Completion | Logits, settings: Iterable[Mapping[str, str]]) -> bool:
    if not isinstance(workload, Completion):
        return False  # nothing is decoded
    # A token is a byte of the prompt or more, and one marks the beginning: the most there can be.
    positions = 1 + len(workload.prompt.encode()) + workload.tokens
    off = {each[_FLASH_ATTENTION] == "off" for each in settings}
    return positions > _SPLIT_POSITIONS and False in off


def _mend(
    plan: Plan, arms: Sequence[Arm], settings: Mapping[str, Mapping[str, str]], flag: str
) -> str:
    for factor in plan.file.arms.matrix:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for arm in arms:
            found[arm.levels.get(factor, "")].add(settings[arm.name][flag])
        # A listed arm has no level: it alone must not make a factor look like the one that sets it.
        values_of = {value for level, of_level in found.items() if level for value in of_level}
        if len(values_of) > 1 and all(len(of_level) == 1 for of_level in found.values()):
            return f"hold it equal, or add {factor} to group_by"
    return "hold it equal, or make it a factor of the matrix and add that to group_by"
