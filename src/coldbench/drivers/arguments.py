"""Reading the user's arguments for flags that a driver owns or has to know."""

import re
from collections.abc import Collection, Sequence

from coldbench.common.errors import ColdbenchError


def listed(*flags: str) -> frozenset[str]:
    """Return the flags in lines of flags separated by spaces."""
    return frozenset(flag for line in flags for flag in line.split())


MODEL_FLAGS = listed(
    "-m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file"
)
"""The model is the study's, in every llama.cpp tool."""

LOG_FLAGS = listed("-v --verbose --log-verbose --log-disable --log-file --log-jsonl --log-colors")
"""They take the log away from where the driver reads it, or change its look."""

RPC_FLAGS = listed("--rpc")
"""The server is started by coldbench, at an address of its own."""

LEVEL_FLAGS = listed("-lv --verbosity --log-verbosity")
_LEVEL = 4
_DEEP_LEVEL = 5
OVERRIDE = ("-ot", "--override-tensor")


def spelling(flag: str) -> str:
    """Return `flag` as llama.cpp compares it: in long flags _ and - are the same."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def given(args: Sequence[str], flags: Collection[str]) -> list[str]:
    """Return those of `args` that are one of `flags`, as written."""
    return [arg for arg in args if spelling(arg) in flags]


def values(args: Sequence[str], flags: Collection[str]) -> list[str]:
    """Return the argument after each occurrence of one of `flags`; empty where there is none."""
    return [
        args[index + 1] if index + 1 < len(args) else ""
        for index, arg in enumerate(args)
        if spelling(arg) in flags
    ]


def refuse(where: str, args: Sequence[str], flags: Collection[str], why: str) -> None:
    """Raise ColdbenchError where `args` (of `where`: workload or arm) hold one of `flags`."""
    for flag in given(args, flags):
        raise ColdbenchError(f"{where} args: {flag}: {why}")


def refuse_owned(
    workload_args: Sequence[str], arm_args: Sequence[str], flags: frozenset[str]
) -> None:
    """Raise ColdbenchError where the user repeats a flag that the driver sets."""
    for where, args in (("workload", workload_args), ("arm", arm_args)):
        refuse(where, args, flags, "the driver sets this flag itself; remove it")


def log_level(workload_args: Sequence[str], arm_args: Sequence[str]) -> list[str]:
    """Return the driver's own log level flag: none where the workload asks for more.

    Raises ColdbenchError where it asks for less, which hides the lines that prove a treatment,
    and where an arm does: arms must log alike.
    """
    refuse("arm", arm_args, LEVEL_FLAGS, "arms must log alike; set the level in the workload")
    for value in values(workload_args, LEVEL_FLAGS):
        if not re.fullmatch(r"\d+", value, re.ASCII) or int(value) < _LEVEL:
            raise ColdbenchError(
                f"workload args: log level {value!r} hides what is in force; give {_LEVEL} or more"
            )
        return []
    return ["-lv", str(_LEVEL)]


def deeper_level(args: Sequence[str]) -> list[str]:
    """Return the flag for the log level that `args` need but do not have; mostly none.

    Only tensor overrides do: at the drivers' own level the engine does not tell of them.
    """
    level = values(args, LEVEL_FLAGS)[-1:]
    if not given(args, OVERRIDE) or (level and int(level[0]) >= _DEEP_LEVEL):
        return []
    return ["-lv", str(_DEEP_LEVEL)]


def replaced(args: Sequence[str], flags: Collection[str], value: str) -> list[str]:
    """Return `args` with `value` after each of `flags`."""
    return [
        value if index and spelling(args[index - 1]) in flags else arg
        for index, arg in enumerate(args)
    ]


def count(args: Sequence[str], flags: Sequence[str], default: int | None = None) -> int:
    """Return the one whole number that `flags` (spellings of one flag) carry in `args`.

    Raises ColdbenchError where it is missing without a default, given twice, or a list or range:
    one process makes one measurement.
    """
    name = "/".join(flags)
    found = values(args, flags)
    if not found and default is not None:
        return default
    if not found:
        raise ColdbenchError(f"workload args: {name} is missing; give it one number")
    if len(found) > 1:
        raise ColdbenchError(
            f"workload args: {name} is given {len(found)} times; one process makes one "
            f"measurement, so make a workload of each"
        )
    if not re.fullmatch(r"\d{1,9}", found[0], re.ASCII):
        raise ColdbenchError(
            f"workload args: {name} is {found[0]!r}, not one whole number; one process makes one "
            f"measurement, so make a workload of each"
        )
    return int(found[0])
