"""What can be said about a llama.cpp command line before it runs."""

import re
from collections.abc import Collection, Mapping, Sequence

from coldbench.drivers.arguments import OVERRIDE, spelling
from coldbench.drivers.requested import LAYERS, LAZY, overrides, requested

_ENTRY = re.compile(
    r"^ {0,2}(?P<flags>-{1,2}[A-Za-z][\w-]*(?:(?:,\s*|\s+)-{1,2}[A-Za-z][\w-]*)*)(?P<value> \S)?"
)
_FLAG = re.compile(r"-{1,2}[A-Za-z][\w-]*")
_NUMBER = re.compile(r"-[\d.]\S*")
# tensors of the input layer stay on the CPU whatever is offloaded (src/llama-arch.cpp)
_INPUT_TENSOR = re.compile(r"(?:per_layer_)?token_embd\.|position_embd\.|token_types\.")
OBSERVABLE_FLAGS = frozenset(
    {*OVERRIDE, *LAYERS, *LAZY}
    | {"-lm", "--load-mode", "-mmp", "--mmap", "--no-mmap", "-dio", "--direct-io"}
    | {"-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "--repack", "-nr", "--no-repack"}
    | {"--no-host", "-t", "--threads"}
)
"""Flags of llama.cpp's tools whose whole effect a run's `effective` settings show.

Arms that differ in these alone and have equal settings in force ended up identical.
"""


def known_flags(help_text: str) -> dict[str, bool]:
    """Return the flags that a llama.cpp tool's --help lists, and whether each needs a value.

    Empty where the text is not the help of such a tool: then nothing is known.
    """
    known: dict[str, bool] = {}
    for line in help_text.splitlines():
        if entry := _ENTRY.match(line):
            needs_value = entry["value"] is not None and not entry["value"].endswith("[")
            known.update((flag, needs_value) for flag in _FLAG.findall(entry["flags"]))
    return known if {"-h", "--help", "-m", "--model"} <= known.keys() else {}


def unknown_flags(argv: Sequence[str], known: Mapping[str, bool]) -> list[str]:
    """Return the flags of `argv` (without the program) that are not among `known`.

    A value after a flag that needs one is no flag, even if it begins with a dash; nor is a
    negative number. Empty where nothing is known.
    """
    unknown: list[str] = []
    is_value = False
    for arg in argv:
        if is_value or not arg.startswith("-") or _NUMBER.fullmatch(arg):
            is_value = False
        elif spelling(arg) in known:
            is_value = known[spelling(arg)]
        elif known and arg not in unknown:
            unknown.append(arg)
    return unknown


def check_tensor_overrides(
    args: Sequence[str], tensor_names: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return errors and notes on the tensor overrides (`-ot PATTERN=BUFFER`) in `args`.

    Errors: no buffer, no regular expression (with its position), a pattern that matches none of
    the model's tensors. Notes: an override that changes nothing.
    """
    errors: list[str] = []
    notes: list[str] = []
    asked = requested(args)
    on_cpu, lazy = asked.layers == "0", asked.lazy == "on"
    for override in overrides(args):
        pattern, equals, buffer = override.partition("=")
        if not (pattern and equals and buffer):
            errors.append(f"-ot {override}: needs the form PATTERN=BUFFER")
            continue
        if "[[:" in pattern or "[^[:" in pattern:
            notes.append(f"pattern {pattern} not checked: POSIX character classes")
            continue
        try:
            matching = [name for name in tensor_names if re.search(pattern, name)]
        except re.error as error:
            errors.append(
                f"pattern {pattern} is not a regular expression: {error.msg} "
                f"at position {error.pos}"
            )
            continue
        if not matching:
            errors.append(f"pattern {pattern} matches 0 of {len(tensor_names)} tensors")
        elif buffer == "CPU" and (on_cpu or all(map(_INPUT_TENSOR.match, matching))):
            notes.append(f"-ot {override} equals the default placement")
        elif lazy and any(name.startswith("per_layer_token_embd.") for name in matching):
            notes.append(f"-ot {override}: a lazily read tensor stays where it is")
    return errors, notes
