"""llama-completion: greedy text for identity checks.

Its text and its log leave through one queue in order (common/log.cpp), and the end of the queue
may be lost at exit. So the counts printed after the text prove that the text is whole.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from coldbench.drivers.arguments import (
    LOG_FLAGS,
    MODEL_FLAGS,
    RPC_FLAGS,
    deeper_level,
    listed,
    log_level,
    refuse_owned,
)
from coldbench.drivers.base import RPC, Output, Result, UnusableError, failure
from coldbench.drivers.engine_log import read_log
from coldbench.drivers.text import HANDFUL, cut_text, is_degenerate
from coldbench.study.workloads import Completion

_OWNED = (
    MODEL_FLAGS
    | LOG_FLAGS
    | RPC_FLAGS
    | listed(
        "-p --prompt -f --file -bf --binary-file -n --predict --n-predict -e --escape --no-escape",
        "-cnv --conversation -no-cnv --no-conversation --temp --temperature --ignore-eos",
        "--display-prompt --no-display-prompt --verbose-prompt --warmup --no-warmup",
    )
)
_OWN = (
    *("-no-cnv", "--temp", "0", "--ignore-eos", "--no-warmup"),
    *("--no-display-prompt", "--no-escape", "--verbose-prompt"),
)
_PROMPT_TOKENS = re.compile(r": number of tokens in prompt = (\d{1,9})\s*$", re.MULTILINE)
# prompt and generated tokens together; older versions call them runs and print one time only
_SAMPLED = re.compile(r"(?:samplers|sampling) time =\s+\S+ ms /\s+(\d{1,9}) (?:tokens|runs)")
_PHASES = {
    "prompt_tps": re.compile(r"prompt eval time =\s+(\d{1,12}\.\d+) ms /\s+(\d{1,9}) tokens"),
    "generation_tps": re.compile(
        r"(?<!prompt )eval time =\s+(\d{1,12}\.\d+) ms /\s+(\d{1,9}) runs"
    ),
}
_END = b"\n\n"


class CompletionDriver:
    """Drives llama-completion."""

    def program(self, workload: Completion) -> str:
        """Return the program's file name."""
        return workload.program or "llama-completion"

    def check(self, workload: Completion, arm_args: Sequence[str] = ()) -> None:
        """Raise ColdbenchError where the user repeats a flag that the driver sets."""
        refuse_owned(workload.args, arm_args, _OWNED)
        log_level(workload.args, arm_args)

    def argv(
        self, workload: Completion, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str]:
        """Return the command line; the prompt reaches the engine as written, without escapes."""
        self.check(workload, arm_args)
        own = [*_OWN, *log_level(workload.args, arm_args)]
        text = ["-n", str(workload.tokens), "-p", workload.prompt]
        server = [] if workload.rpc is None else ["--rpc", RPC]
        return [program, "-m", model, *server, *own, *text, *workload.args, *arm_args]

    def probe(
        self, workload: Completion, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return a run of one token at the level that shows overrides, where there are any."""
        if not (level := deeper_level([*workload.args, *arm_args])):
            return None
        short = workload.model_copy(update={"tokens": 1})
        return [*self.argv(short, program, model, arm_args), *level]

    def repetitions(self, workload: Completion) -> int:
        """Return 1."""
        return 1

    def read(self, workload: Completion, output: Output) -> Result:
        """Read an output: the text alone, the number of generated tokens, and both rates."""
        effective, notes = read_log(output.stderr, output.memlock_limit_bytes)
        seen = Result("ok", effective=effective, notes=notes)
        if reason := failure(workload, output):
            return replace(seen, status="failed", reason=reason)
        tokens = _generated(output.stderr)
        try:
            if workload.text is not None:
                text = cut_text(workload.text, output.stdout)
            else:
                text = output.stdout.removesuffix(_END)
            _check_text(text, tokens, workload)
        except UnusableError as unusable:
            return replace(seen, status=unusable.status, reason=unusable.reason, tokens=tokens)
        if tokens is None:
            notes.append("number of generated tokens unknown: the log does not tell")
        return replace(seen, metrics=_rates(output.stderr), text=text, tokens=tokens)


def _generated(stderr: str) -> int | None:
    prompt = _PROMPT_TOKENS.findall(stderr)
    sampled = _SAMPLED.findall(stderr)
    return int(sampled[-1]) - int(prompt[-1]) if prompt and sampled else None


def _check_text(text: bytes, tokens: int | None, workload: Completion) -> None:
    if not text.strip():
        raise UnusableError("void", "no text: exit 0 with empty output")
    if tokens is None and workload.text is None:
        raise UnusableError(
            "void",
            "text may be cut off: no token count after it "
            "(the engine does not flush its log at exit)",
        )
    if tokens is not None and tokens != workload.tokens:
        raise UnusableError(
            "invalid", f"{tokens} tokens generated where {workload.tokens} were asked for"
        )
    if is_degenerate(text):
        raise UnusableError(
            "invalid", f"degenerate text: no more than {HANDFUL} distinct characters and words"
        )


def _rates(stderr: str) -> dict[str, float]:
    rates = {}
    for metric, pattern in _PHASES.items():
        found = pattern.findall(stderr)
        if found and (milliseconds := float(found[-1][0])) > 0:
            rates[metric] = int(found[-1][1]) * 1e3 / milliseconds
    return {metric: rate for metric, rate in rates.items() if rate > 0}
