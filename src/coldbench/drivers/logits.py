"""llama-results: tokens and logits of one prompt, for identity checks down to the bit.

The tool's own check allows an error (NMSE <= 1e-6), and its file also holds the model's path, as
typed. So the digest here is of the bytes of the two tensors alone: tokens first, then logits.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.arguments import (
    LOG_FLAGS,
    MODEL_FLAGS,
    RPC_FLAGS,
    listed,
    log_level,
    refuse_owned,
)
from coldbench.drivers.base import OUT, RPC, Output, Result, UnusableError, failure
from coldbench.drivers.engine_log import read_log
from coldbench.sources.header import Header, Tensor, read_header
from coldbench.study.workloads import Logits

_OWNED = (
    MODEL_FLAGS
    | LOG_FLAGS
    | RPC_FLAGS
    | listed(
        "-p --prompt -f --file -bf --binary-file -e --escape --no-escape",
        "-o --output --output-file --check",
    )
)
_CHUNK_VALUES = 1 << 20


class LogitsDriver:
    """Drives llama-results."""

    def program(self, workload: Logits) -> str:
        """Return the program's file name."""
        return workload.program or "llama-results"

    def check(self, workload: Logits, arm_args: Sequence[str] = ()) -> None:
        """Raise ColdbenchError where the user repeats a flag that the driver sets."""
        refuse_owned(workload.args, arm_args, _OWNED)
        log_level(workload.args, arm_args)

    def argv(
        self, workload: Logits, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str]:
        """Return the command line, in which OUT stands for the file of tokens and logits.

        The prompt reaches the engine as written: this tool resolves no escapes by default.
        """
        self.check(workload, arm_args)
        server = [] if workload.rpc is None else ["--rpc", RPC]
        own = [*log_level(workload.args, arm_args), "-o", OUT, "-p", workload.prompt]
        return [program, "-m", model, *server, *own, *workload.args, *arm_args]

    def probe(
        self, workload: Logits, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return None: these runs are compared, never measured."""
        return None

    def repetitions(self, workload: Logits) -> int:
        """Return 1."""
        return 1

    def read(self, workload: Logits, output: Output) -> Result:
        """Read the file that was written: a digest of tokens and logits, and how many tokens."""
        effective, notes = read_log(output.stderr, output.memlock_limit_bytes)
        seen = Result("ok", effective=effective, notes=notes)
        if reason := failure(workload, output):
            return replace(seen, status="failed", reason=reason)
        try:
            digest, tokens = _digest(output.written)
        except UnusableError as unusable:
            return replace(seen, status=unusable.status, reason=unusable.reason)
        return replace(seen, digest=digest, tokens=tokens)


def _digest(path: Path | None) -> tuple[str, int]:
    if path is None or not path.is_file():
        raise UnusableError("void", "no logits: exit 0 without a file of them")
    try:
        header = read_header(path)
    except ColdbenchError:
        # The tool does not look whether its writing succeeded.
        raise UnusableError("void", "no logits: their file is cut off; is the disk full?") from None
    tokens, logits = _tensor(header, "tokens", "I32"), _tensor(header, "logits", "F32")
    if not tokens.size or not logits.size or logits.size % tokens.size:
        raise UnusableError(
            "invalid", f"{logits.size // 4} logits do not belong to {tokens.size // 4} tokens"
        )
    digest = hashlib.md5(usedforsecurity=False)
    digest.update(_values(path, tokens, "<i4").tobytes())
    values = _values(path, logits, "<f4")
    alike = True
    for start in range(0, len(values), _CHUNK_VALUES):
        chunk = values[start : start + _CHUNK_VALUES]
        if not np.isfinite(chunk).all():
            raise UnusableError("invalid", "logits that are not finite numbers")
        alike = alike and bool((chunk == values[0]).all())
        digest.update(chunk.tobytes())
    if alike:
        raise UnusableError("invalid", "degenerate: all logits are one number")
    return digest.hexdigest(), tokens.size // 4


def _tensor(header: Header, name: str, type_: str) -> Tensor:
    for tensor in header.tensors:
        if (tensor.name, tensor.type) == (name, type_):
            return tensor
    raise UnusableError("invalid", f"the file of logits has no tensor {name} of type {type_}")


def _values(path: Path, tensor: Tensor, kind: str) -> np.memmap:
    return np.memmap(path, dtype=kind, mode="r", offset=tensor.offset, shape=(tensor.size // 4,))
