"""What a study file may say of a workload: what runs in one process, and with which driver."""

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from coldbench.study.scalars import (
    Arguments,
    Duration,
    Environment,
    LocalPath,
    Name,
    RegularExpression,
    Size,
    TextPattern,
)
from coldbench.study.section import Section, one_of


class _Workload(Section):
    llama_cpp: ClassVar[bool] = True
    """Whether llama.cpp's flags, log and settings files are what the program has."""

    label: str | None = None
    program: str | None = None
    args: Arguments = ()
    environment: Environment = Field(default_factory=dict)
    time_limit: Duration = 600.0
    output_limit: Size = 16 * 2**20
    residency_every: Annotated[Duration, Field(ge=0.1)] | None = None


class Rpc(Section):
    """An RPC server of the build on this machine, as a device to offload to."""

    threads: int = Field(default=1, gt=0)


class BatchedBench(_Workload):
    """llama-batched-bench: one prompt and generation pass a process."""

    driver: Literal["llama-batched-bench"]
    rpc: Rpc | None = None


class Bench(_Workload):
    """llama-bench: prompt and generation tests, its samples averaged within the process."""

    driver: Literal["llama-bench"]


class _Prompted(_Workload):
    prompt: str = Field(min_length=1)

    def mutated(self, prompt: str | None) -> Self:
        """Return the workload that must give another output."""
        return self.model_copy(update={"prompt": prompt})


class _Generating(_Prompted):
    tokens: int = Field(default=64, gt=0)


class Completion(_Generating):
    """llama-completion: greedy text of `tokens` tokens after `prompt`."""

    driver: Literal["llama-completion"]
    rpc: Rpc | None = None
    text: TextPattern | None = None


class Logits(_Prompted):
    """llama-results: the logits after every token of `prompt`, for an identity check alone."""

    driver: Literal["llama-results"]
    rpc: Rpc | None = None


class GemmaCpp(_Generating):
    """gemma.cpp: at most `tokens` tokens after `prompt`; `flags` are those that its builds add."""

    llama_cpp: ClassVar[bool] = False
    driver: Literal["gemma-cpp"]
    flags: Arguments = ()


class Metric(Section):
    """One figure in a program's output: a regular expression's first group, or a JSON path."""

    regex: RegularExpression | None = None
    json_path: str | None = None
    stream: Literal["stdout", "stderr"] = "stdout"
    unit: str = ""

    @model_validator(mode="after")
    def _one_of(self) -> "Metric":
        if (self.regex is None) == (self.json_path is None):
            raise ValueError("a metric needs exactly one of the keys regex, json_path")
        if self.regex is not None and re.compile(self.regex).groups != 1:
            raise ValueError("a metric's regex needs exactly one group: the figure")
        return self


class Command(_Workload):
    """Any program: `args` may use {model}; `metrics` says where its figures stand."""

    llama_cpp: ClassVar[bool] = False
    driver: Literal["command"]
    program: str
    metrics: dict[Name, Metric] = Field(min_length=1)
    text: TextPattern | None = None


# --- our own kernels ----------------------------------------------------------------------------


class Zipf(Section):
    """Tokens drawn by rank: the share of rank k is as k to the power of -`exponent`."""

    exponent: float = Field(gt=0)
    count: int = Field(gt=0)
    seed: int = Field(default=1, ge=0)


class ZipfTokens(Section):
    """Drawn tokens."""

    zipf: Zipf


class RecordedTokens(Section):
    """Tokens from a file: numbers with white space between them, or a .npy array."""

    recorded: LocalPath


class TextTokens(Section):
    """Tokens of a text file, by the model's own tokenizer: llama-tokenize of the build named."""

    text: LocalPath
    tokenizer: Name


Trace = Annotated[
    Annotated[ZipfTokens, Tag("zipf")]
    | Annotated[RecordedTokens, Tag("recorded")]
    | Annotated[TextTokens, Tag("text")],
    one_of("zipf", "recorded", "text"),
]


class _Kernel(_Workload):
    llama_cpp: ClassVar[bool] = False

    def mutated(self, _: str | None) -> Self:
        """Return the workload that must give another checksum: the kernel errs once."""
        return self.model_copy(update={"args": (*self.args, "--mutant")})


class Gather(_Kernel):
    """gather, our kernel: rows of the model's table, read in the order that a trace asks for."""

    driver: Literal["gather"]
    trace: Trace


class Stream(_Kernel):
    """stream, our kernel: all layers of the model, read and multiplied token after token."""

    driver: Literal["stream"]


Workload = Annotated[
    BatchedBench | Bench | Completion | Logits | GemmaCpp | Command | Gather | Stream,
    Field(discriminator="driver"),
]

Checkable = Completion | Logits | GemmaCpp | Gather | Stream
"""Workloads whose output can be compared byte for byte."""
