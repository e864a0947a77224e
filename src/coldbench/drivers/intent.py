"""Settings by meaning, put in the flags of one build.

llama.cpp renamed these flags within weeks: --mmap, --mlock and --direct-io became --load-mode,
--tensor-read-lazy became --lazy-mode (ggml-org/llama.cpp#27969); llama-bench's switches take 0 or
1 where those of its sister tools take nothing. Which flags a build has, its --help tells.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coldbench.drivers.requested import DIRECT_IO, LAZY, LOAD_MODE, MLOCK, MMAP, mode_of
from coldbench.study.treatment import Intent

_SWITCHES = {
    "mmap": (MMAP, ("--no-mmap",)),
    "mlock": (MLOCK, ()),
    "direct_io": (DIRECT_IO, ("--no-direct-io",)),
    "repack": (("--repack",), ("--no-repack",)),
}
_DEFAULTS = {"mmap": "on", "mlock": "off", "direct_io": "off"}
"""What llama.cpp did without the flag, in versions before --load-mode."""

_SWITCHES_OF_MODE = {
    "none": {"mmap": "off"},
    "mmap": {"mmap": "on"},
    "mlock": {"mmap": "off", "mlock": "on"},
    "mmap+mlock": {"mmap": "on", "mlock": "on"},
    "dio": {"direct_io": "on"},
}


@dataclass(frozen=True)
class Resolved:
    """An intent in a build's flags: `args` to add to the command line.

    `unknown` holds the settings ("lazy: on") that the build has no flag for: the run must be
    refused. `notes` tell which need no flag, since the build does nothing else.
    """

    args: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def resolve_intent(intent: Intent, known: Mapping[str, bool]) -> Resolved:
    """Return `intent` in the flags of the build whose --help lists `known` (see `known_flags`)."""
    resolved = Resolved()
    settings = intent.given
    if not known:
        resolved.unknown.extend(f"{name}: {value}" for name, value in settings.items())
        return resolved
    if value := settings.pop("lazy", None):
        _add_lazy(resolved, value, known)
    load = {name: settings.pop(name) for name in ("mmap", "mlock", "direct_io") if name in settings}
    mode = settings.pop("load_mode", None)
    if flag := _first(LOAD_MODE, known):
        if mode is None and load:
            # before there were modes, a lock alone was one of a mapping
            mode = mode_of(
                mapped=load.get("mmap", "on") == "on",
                locked=load.get("mlock") == "on",
                direct=load.get("direct_io") == "on",
            )
        resolved.args.extend([flag, mode] if mode else [])
    elif mode == "auto":
        resolved.notes.append("load_mode: auto needs no flag: the build knows no load modes")
    else:
        for name, value in (_SWITCHES_OF_MODE[mode] if mode else load).items():
            _add_switch(resolved, name, value, known, f"load_mode: {mode}" if mode else "")
    for name, value in settings.items():
        _add_switch(resolved, name, value, known, "")
    return resolved


def _first(flags: tuple[str, ...], known: Mapping[str, bool]) -> str | None:
    return next((flag for flag in reversed(flags) if flag in known), None)


def _add_lazy(resolved: Resolved, value: str, known: Mapping[str, bool]) -> None:
    if flag := _first(LAZY, known):
        resolved.args.extend([flag, value])
    elif value == "off":
        resolved.notes.append("lazy: off needs no flag: the build reads nothing lazily")
    else:
        resolved.unknown.append(f"lazy: {value}")


def _add_switch(
    resolved: Resolved, name: str, value: str, known: Mapping[str, bool], mode: str
) -> None:
    on, off = _SWITCHES[name]
    flag = _first(on, known)
    if flag is not None and known[flag]:
        resolved.args.extend([flag, "1" if value == "on" else "0"])
    elif value == "on" and flag is not None:
        resolved.args.append(flag)
    elif value == "off" and (negative := _first(off, known)):
        resolved.args.append(negative)
    elif _DEFAULTS.get(name) == value and (value == "off" or _first(off, known)):
        resolved.notes.append(f"{mode or f'{name}: {value}'} needs no flag: the build does so")
    elif (unknown := mode or f"{name}: {value}") not in resolved.unknown:
        resolved.unknown.append(unknown)
