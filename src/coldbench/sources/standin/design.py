"""What a stand-in consists of, before a byte of it is written: metadata, vocabulary, tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gguf.constants import GGUFValueType

from coldbench.common.errors import ColdbenchError
from coldbench.sources.standin.blocks import row_bytes
from coldbench.study.models import Table

BODY_TYPE = "Q8_0"
"""The type of the body's matrices: its kernels are quick on every CPU."""

CONTEXT_TOKENS = 32768
NORM_EPSILON = 1e-6
TOLERANCE = 0.25
"""How far a body may lie from the size that was asked for."""

Value = int | float | str | list[int] | list[bool]
Metadata = dict[str, tuple[Value, GGUFValueType, GGUFValueType | None]]


def unit(inputs: int) -> float:
    """Return the spread of weights that keep the RMS of a sum over `inputs` products.

    A square root is exact in IEEE arithmetic, a power is not: files must not differ by machine.
    """
    return 1 / math.sqrt(inputs)


@dataclass(frozen=True)
class Constant:
    """A tensor filled with one value (norms, biases)."""

    value: float


@dataclass(frozen=True)
class Random:
    """A tensor of random values around 0 with standard deviation `spread`.

    Its first `zero_rows` rows are 0: tokens with such output rows are never generated.
    """

    spread: float
    zero_rows: int = 0


@dataclass(frozen=True)
class Hole:
    """A tensor of zeros that is a hole in the file."""


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written; `shape` is in ggml's order (the row length first)."""

    name: str
    shape: tuple[int, ...]
    type: str
    fill: Constant | Random | Hole

    @property
    def values(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """The number of bytes of data, without padding."""
        return row_bytes(self.type, self.shape[0]) * math.prod(self.shape[1:])


@dataclass
class Design:
    """A whole stand-in: keys are without the architecture's prefix."""

    architecture: str
    vocabulary: int
    metadata: Metadata = field(default_factory=dict)
    tensors: list[TensorPlan] = field(default_factory=list)

    def integer(self, key: str, value: int) -> None:
        """Add a 32-bit unsigned integer."""
        self.metadata[key] = (value, GGUFValueType.UINT32, None)

    def real(self, key: str, value: float) -> None:
        """Add a 32-bit float."""
        self.metadata[key] = (value, GGUFValueType.FLOAT32, None)

    def array(self, key: str, values: list[int] | list[bool], kind: GGUFValueType) -> None:
        """Add an array of numbers of type `kind`."""
        self.metadata[key] = (values, GGUFValueType.ARRAY, kind)

    def matrix(self, name: str, shape: tuple[int, ...], gain: float = 1.0) -> None:
        """Add a random body matrix that turns inputs of RMS 1 into outputs of RMS `gain`."""
        self.random(name, shape, gain * unit(shape[0]))

    def random(
        self,
        name: str,
        shape: tuple[int, ...],
        spread: float,
        kind: str = BODY_TYPE,
        zero_rows: int = 0,
    ) -> None:
        """Add a random tensor."""
        self.tensors.append(TensorPlan(f"{name}.weight", shape, kind, Random(spread, zero_rows)))

    def table(self, name: str, shape: tuple[int, ...], spread: float, table: Table) -> None:
        """Add the embedding table: random as `random`, or a hole."""
        fill = Hole() if table.sparse else Random(spread)
        self.tensors.append(TensorPlan(name, shape, table.type, fill))

    def constant(self, name: str, values: int, value: float = 1.0) -> None:
        """Add an F32 vector of one value; `name` is the whole name."""
        self.tensors.append(TensorPlan(name, (values,), "F32", Constant(value)))

    def norm(self, name: str, values: int, value: float = 1.0) -> None:
        """Add a norm's weight vector."""
        self.constant(f"{name}.weight", values, value)


def fitted(
    design: Callable[[int, int], Design],
    widths: list[int],
    inner: Callable[[int], list[int]],
    body_bytes: int,
    body_of: Callable[[Design], int],
) -> Design:
    """Choose the widest of `widths`, then the `inner` width, that meet `body_bytes`.

    `design(width, inner)` is tried with the smallest inner width first: bodies grow with both.
    Raises ColdbenchError where even the nearest design is off by more than TOLERANCE.
    """
    best = design(widths[0], inner(widths[0])[0])
    for width in widths:
        choices = inner(width)
        if body_of(design(width, choices[0])) > body_bytes:
            break
        low, high = 0, len(choices) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if body_of(design(width, choices[middle])) <= body_bytes:
                low = middle
            else:
                high = middle - 1
        best = design(width, choices[low])
    got = body_of(best)
    if abs(got - body_bytes) > TOLERANCE * body_bytes:
        bound = "least" if got > body_bytes else "most"
        raise ColdbenchError(
            f"stand-in {best.architecture}: a body of {body_bytes / 2**20:.0f} MiB cannot be met "
            f"with {best.vocabulary:,} tokens; it is at {bound} {got / 2**20:.0f} MiB"
        )
    return best
