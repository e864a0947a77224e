"""gemma.cpp: its program `gemma`, one prompt a process.

It ignores a flag that it does not know, takes the first of a repeated one, and maps a file by its
size unless it is told (util/args.h, gemma/gemma_args.h): what would silently be something else is
refused. Its figures stand on stderr (TimingInfo in gemma/gemma.h): whole milliseconds, cut off, and
rates of two decimals. It does not tell how long loading took, and without a mapping loading is
where a cold start costs: so the time to the first token is taken outside, from the exec on.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.arguments import listed
from coldbench.drivers.base import Mark, Output, Result, UnusableError, excerpt, failure, figure
from coldbench.drivers.text import HANDFUL, is_degenerate
from coldbench.study.workloads import GemmaCpp

MARKS = {
    "load_s": Mark("stderr", "[ Reading prompt ]"),
    "first_token_s": Mark("stderr", "Time to first token"),
}
"""What is timed from outside: the prompt is read right after loading."""

_OWNED = listed("--weights --prompt --prompt_file --max_generated_tokens --verbosity --eot_line")
_KNOWN = listed(
    "--tokenizer --map --to_bf16 --wrapping",
    "--skip_packages --max_packages --skip_clusters --max_clusters --skip_lps --max_lps",
    "--bind --num_threads --pin --spin",
    "--seq_len --prefill_tbatch --decode_qbatch --temperature --top_k --deterministic",
)
_PREFILL = re.compile(
    r"Prefill: (?P<ms>\d{1,12}) ms for (?P<tokens>\d{1,9}) prompt tokens "
    r"\((?P<rate>\d{1,12}\.\d{1,6}) tokens / sec\); Time to first token: (?P<first_ms>\d{1,12}) ms"
)
_GENERATE = re.compile(
    r"Generate: (?P<ms>\d{1,12}) ms for (?P<tokens>\d{1,9}) tokens "
    r"\((?P<rate>\d{1,12}\.\d{1,6}) tokens / sec\)"
)
_LAST_DIGIT = 0.01
# dots for the tokens of the prompt, a blank line, the text
_TEXT = re.compile(rb"\.+\n\n(.*)\Z", re.DOTALL)
_END = b"\n\n"
_WORDS = re.compile(
    r"Failed to open|header magic \w+ does not match|Zero-sized file|Invalid value for|Abort at"
)
_ENOUGH_TO_TELL = 16


class GemmaCppDriver:
    """Drives gemma."""

    def program(self, workload: GemmaCpp) -> str:
        """Return the program's file name."""
        return workload.program or "gemma"

    def check(self, workload: GemmaCpp, arm_args: Sequence[str] = ()) -> None:
        """Refuse what gemma.cpp would ignore or decide by itself.

        Raises ColdbenchError naming the flag.
        """
        settings: dict[str, str] = {}
        for where, args in (("workload", workload.args), ("arm", arm_args)):
            for flag, value in zip(args[::2], [*args[1::2], None], strict=False):
                _check_flag(f"{where} args: {flag}", flag, workload.flags)
                if value is None:
                    raise ColdbenchError(f"{where} args: {flag}: lacks its value")
                if flag in settings:
                    raise ColdbenchError(
                        f"{where} args: {flag}: is given twice, and the engine takes the first; "
                        "give it once, in the workload or in the arm"
                    )
                settings[flag] = value
        if settings.get("--map") not in {"0", "1"}:
            raise ColdbenchError(
                "args: --map: must be 0 or 1, in the workload or in every arm; else the engine "
                "decides by the size of the file"
            )
        if settings["--map"] == "1" and settings.get("--to_bf16") == "1":
            raise ColdbenchError(
                "args: --to_bf16: 1 makes the engine ignore --map 1; leave one of them out"
            )
        if workload.prompt.startswith("--"):
            raise ColdbenchError("prompt: begins with --, so the engine would take it for a flag")

    def argv(
        self, workload: GemmaCpp, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str]:
        """Return the command line."""
        self.check(workload, arm_args)
        return [
            *(program, "--weights", model, "--prompt", workload.prompt),
            *("--max_generated_tokens", str(workload.tokens), "--verbosity", "1"),
            *workload.args,
            *arm_args,
        ]

    def probe(
        self, workload: GemmaCpp, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return None: what is in force shows in memory and reads, not in a log."""
        return None

    def repetitions(self, workload: GemmaCpp) -> int:
        """Return 1."""
        return 1

    def read(self, workload: GemmaCpp, output: Output) -> Result:
        """Read an output: both rates, the two times taken outside, and the text alone.

        `prompt_tps` is of what was prefilled, which is all but the prompt's last token. The tokens
        generated may be fewer than asked for, where the model ended its text: a note says so.
        """
        if reason := failure(workload, output):
            return Result("failed", _with_words(reason, output.stderr))
        prefill, generate = (_last(pattern, output.stderr) for pattern in (_PREFILL, _GENERATE))
        if generate is None:
            return Result("void", "no result: exit 0 without a line of figures")
        tokens = int(generate["tokens"])
        seen = Result("ok", tokens=tokens)
        try:
            if not 0 < tokens <= workload.tokens:
                raise UnusableError(
                    "invalid", f"{tokens} tokens generated where {workload.tokens} were asked for"
                )
            if prefill is None:
                raise UnusableError("invalid", "no line of the time that the prompt took")
            seen = replace(seen, **_facts(prefill, generate))
            metrics = {
                "prompt_tps": _rate(prefill, "prompt_tps"),
                "generation_tps": _rate(generate, "generation_tps"),
            }
            if (first := output.marked_s.get("first_token_s")) is not None:
                metrics["first_token_s"] = figure(first, "first_token_s")
            text = _text(output.stdout, tokens)
        except UnusableError as unusable:
            return replace(seen, status=unusable.status, reason=unusable.reason)
        if tokens < workload.tokens:
            seen.notes.append(
                f"{tokens} of {workload.tokens} tokens generated: the model ended its text"
            )
        return replace(seen, metrics=metrics, load_s=output.marked_s.get("load_s"), text=text)


def _check_flag(where: str, flag: str, further: Sequence[str]) -> None:
    if flag in _OWNED:
        raise ColdbenchError(f"{where}: the driver sets this flag itself; remove it")
    if flag not in _KNOWN and flag not in further:
        raise ColdbenchError(
            f"{where}: is no flag of gemma.cpp, which would ignore it; write --FLAG and its value "
            "as two items, and name what a build of your own adds under `flags`"
        )


def _last(pattern: re.Pattern[str], stderr: str) -> dict[str, str] | None:
    found = [*pattern.finditer(stderr)]
    return found[-1].groupdict() if found else None


def _facts(prefill: dict[str, str], generate: dict[str, str]) -> dict[str, Any]:
    row = {f"prefill_{key}": float(value) for key, value in prefill.items()}
    row |= {f"generate_{key}": float(value) for key, value in generate.items()}
    # the last token of the prompt is fed with the first step of generating
    return {"rows": [row], "effective": {"prompt_tokens": int(prefill["tokens"]) + 1}}


def _rate(line: dict[str, str], name: str) -> float:
    """Return tokens/s by the finer of the line's two figures: whole ms, or two decimals of a rate.

    Raises UnusableError (invalid) where the two contradict each other.
    """
    tokens, ms = int(line["tokens"]), int(line["ms"])
    printed = float(line["rate"])
    slowest = 1e3 * tokens / (ms + 1)
    fastest = 1e3 * tokens / ms if ms else float("inf")
    if not slowest - _LAST_DIGIT <= printed <= fastest + _LAST_DIGIT:
        raise UnusableError(
            "invalid", f"{name}: {tokens} tokens in {ms} ms are not {line['rate']} tokens / sec"
        )
    by_ms = fastest - slowest < _LAST_DIGIT
    return figure(fastest if by_ms else printed, name)


def _text(stdout: bytes, tokens: int) -> bytes:
    found = _TEXT.search(stdout)
    text = found[1].removesuffix(_END) if found else b""
    if not text.strip():
        raise UnusableError("invalid", "no text: the model ended it at once; try another prompt")
    if tokens >= _ENOUGH_TO_TELL and is_degenerate(text):
        raise UnusableError(
            "invalid", f"degenerate text: no more than {HANDFUL} distinct characters and words"
        )
    return text


def _with_words(reason: str, stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if _WORDS.search(line)] or lines[-1:]
    return f"{reason}: {excerpt(telling[0])}" if telling and telling[0] not in reason else reason
