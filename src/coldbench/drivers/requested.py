"""What a llama.cpp command line asks for, whichever version's flags say it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coldbench.drivers.arguments import OVERRIDE, spelling, values

LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")
LAZY = ("--tensor-read-lazy", "-lzm", "--lazy-mode")
LOAD_MODE = ("-lm", "--load-mode")
MMAP = ("-mmp", "--mmap")
MLOCK = ("--mlock",)
DIRECT_IO = ("-dio", "--direct-io")
THREADS = ("-t", "--threads")


@dataclass(frozen=True)
class Requested:
    """What is asked for; None where nothing is, or where the engine may choose.

    `load_mode` is in the newest spelling; `overrides` are (pattern, buffer).
    """

    lazy: str | None
    load_mode: str | None
    layers: str | None
    threads: int | None
    overrides: tuple[tuple[str, str], ...]


def requested(args: Sequence[str]) -> Requested:
    """Return what `args` ask for; of a repeated flag the last one counts, as in the engine."""
    threads = values(args, THREADS)[-1:]
    mode = next(iter(values(args, LOAD_MODE)[-1:]), None) or _old_mode(args)
    return Requested(
        lazy=next(iter(values(args, LAZY)[-1:]), None),
        load_mode=None if mode == "auto" else mode,
        layers=next(iter(values(args, LAYERS)[-1:]), None),
        threads=int(threads[0]) if threads and re.fullmatch(r"[1-9]\d{0,5}", threads[0]) else None,
        overrides=tuple(
            (pattern, buffer)
            for override in overrides(args)
            for pattern, equals, buffer in [override.partition("=")]
            if pattern and equals and buffer
        ),
    )


def overrides(args: Sequence[str]) -> list[str]:
    """Return the tensor overrides PATTERN=BUFFER; llama-bench separates them by semicolons."""
    return [part for value in values(args, OVERRIDE) for part in re.split("[,;]", value)]


def mode_of(*, mapped: bool, locked: bool, direct: bool) -> str:
    """Return the load mode that three switches of older versions come to."""
    if direct:
        return "dio"
    return {
        (True, True): "mmap+mlock",
        (True, False): "mmap",
        (False, True): "mlock",
        (False, False): "none",
    }[mapped, locked]


def _old_mode(args: Sequence[str]) -> str | None:
    switches: dict[str, bool] = {}
    for index, arg in enumerate(args):
        on = args[index + 1 : index + 2] != ["0"]  # llama-bench's switches have a value
        if spelling(arg) in (*MMAP, "--no-mmap"):
            switches["mapped"] = on and spelling(arg) != "--no-mmap"
        elif spelling(arg) in MLOCK:
            switches["locked"] = on
        elif spelling(arg) in (*DIRECT_IO, "-ndio", "--no-direct-io"):
            switches["direct"] = on and spelling(arg) in DIRECT_IO
    if not switches:
        return None
    return mode_of(**{"mapped": True, "locked": False, "direct": False} | switches)
