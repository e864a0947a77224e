"""Which tensors an engine can read lazily, row by row, instead of loading them whole."""

from dataclasses import dataclass
from typing import Literal

from coldbench.sources.header.model import TABLE_TENSOR, ModelMap
from coldbench.sources.header.parse import Tensor

FLAGGED = {"gemma4": (TABLE_TENSOR,), "qwen4exp": (TABLE_TENSOR,)}
"""The tensors that an architecture's loader flags TENSOR_READ_LAZY (llama.cpp, src/models)."""

FLAGGED_AT = "0c1e57098"
"""The engine's commit that FLAGGED was read from."""

AUTO_BYTES = 4 << 30
"""Above this size, `--lazy-mode auto` reads a flagged tensor lazily (llama-model-loader.cpp)."""

_LOOKED_UP = (TABLE_TENSOR, "token_embd.weight", "output.weight")
"""Tensors as large as a vocabulary: the ones that people ask about."""

Mode = Literal["auto", "on", "never"]


@dataclass(frozen=True)
class Laziness:
    """Whether a tensor can be read lazily: by itself (`auto`), when asked (`on`), or `never`."""

    tensor: Tensor
    mode: Mode
    reason: str


def lazy_reading(model: ModelMap) -> tuple[Laziness, ...]:
    """Judge the flagged tensors, those as large as a vocabulary, and all above AUTO_BYTES.

    Size never makes a tensor lazy: it only takes flagged ones out of `auto`.
    """
    flagged = FLAGGED.get(model.architecture or "", ())
    asked = dict.fromkeys((*flagged, *_LOOKED_UP))
    asked |= {t.name: None for t in model.tensors.values() if t.size > AUTO_BYTES}
    tensors = [model.tensors[name] for name in asked if name in model.tensors]
    return tuple(_judged(tensor, flagged, model.architecture) for tensor in tensors)


def _judged(tensor: Tensor, flagged: tuple[str, ...], architecture: str | None) -> Laziness:
    large = tensor.size > AUTO_BYTES
    if tensor.name in flagged:
        if large:
            return Laziness(tensor, "auto", f"flagged by {architecture}, above 4 GiB")
        return Laziness(tensor, "on", f"flagged by {architecture}; auto begins above 4 GiB")
    if architecture is None:
        why = "the header names no architecture"
    elif flagged:
        why = f"{architecture} does not flag it"
    else:
        why = f"{architecture} flags no tensor"
    return Laziness(tensor, "never", f"{why}, whatever its size" if large else why)
