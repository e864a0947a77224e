"""Token streams: drawn by Zipf's law, recorded, of a text, or those that an engine's bench decodes.

A stream's ids are checked against the model's vocabulary before anything is computed from them.
"""

import math
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import Keys

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import cache_folder
from coldbench.common.scratch import scratch
from coldbench.sources.header import ModelMap, Skipped

Ids = npt.NDArray[np.int64]

MAX_TOKENS = 1 << 28
TOKENIZER_LIMIT_S = 600.0
WARM_UP_TOKENS = 16
"""What llama-batched-bench decodes before it measures (tools/batched-bench/batched-bench.cpp)."""

_NPY = b"\x93NUMPY"
_IDS = re.compile(rb"[0-9\s]*")
_PUNCTUATION = bytes.maketrans(b"[],", b"   ")
_MAX_DIGITS = 18


@dataclass(frozen=True)
class Tokens:
    """Token ids in the order in which they are decoded.

    `starts` are the positions in `ids` where a new sequence begins, the first of them 0: a token
    has no predecessor there.
    """

    ids: Ids
    starts: tuple[int, ...] = (0,)


def vocabulary_of(model: ModelMap) -> int:
    """Return how many tokens a model's vocabulary has; raises ColdbenchError if it has none."""
    found = model.metadata.get(Keys.Tokenizer.LIST)
    if not isinstance(found, Skipped) or not found.count:
        raise ColdbenchError(
            f"{model.path}: its header has no vocabulary ({Keys.Tokenizer.LIST}); "
            "give rows instead of tokens, with --raw"
        )
    return found.count


def zipf_tokens(vocabulary: int, exponent: float, count: int, seed: int) -> Tokens:
    """Draw `count` tokens, the k-th most frequent of them in proportion to 1 / k^exponent.

    Which token is the k-th is drawn by the seed too: neighbouring ids are not neighbours in
    frequency, so that nothing depends on how a tokenizer numbers its tokens. The generator is
    numpy's RandomState, whose stream is frozen (NEP 19). Raises ColdbenchError for values that
    make no distribution.
    """
    if not (math.isfinite(exponent) and 0 <= exponent <= 20):
        raise ColdbenchError(f"zipf: exponent {exponent}: must be a number from 0 to 20")
    if not 1 <= count <= MAX_TOKENS:
        raise ColdbenchError(f"zipf: count {count:,}: must be 1 to {MAX_TOKENS:,} tokens")
    if not 0 <= seed < 2**32:
        raise ColdbenchError(f"zipf: seed {seed}: must be 0 to {2**32 - 1}")
    random = np.random.RandomState(seed)
    below = np.cumsum(np.arange(1, vocabulary + 1, dtype=np.float64) ** -exponent)
    ranks = np.searchsorted(below, random.random_sample(count) * below[-1], side="right")
    # A draw may be rounded up to the sum itself.
    np.minimum(ranks, vocabulary - 1, out=ranks)
    return Tokens(random.permutation(vocabulary)[ranks].astype(np.int64))


def recorded_tokens(path: Path, vocabulary: int) -> Tokens:
    """Read a file of token ids: a .npy of integers, or text with white space between the ids.

    Brackets and commas in the text are white space too, since tokenizers print lists. Raises
    ColdbenchError for any other file, and for ids that the vocabulary lacks.
    """
    try:
        with path.open("rb") as stream:
            binary = stream.read(len(_NPY)) == _NPY
        ids = _array(path) if binary else _parsed(path.read_bytes(), str(path))
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be read: {error.strerror}") from error
    return Tokens(_checked(ids, vocabulary, str(path)))


def text_tokens(path: Path, tokenizer: Path, model: ModelMap) -> Tokens:
    """Return the tokens of the text file `path` by the model's own tokenizer.

    `tokenizer` is the program llama-tokenize of an engine. The text is taken as it is: no escapes
    and no special tokens are read out of it, and the model's own rule says whether it begins with
    a beginning-of-text token. Raises ColdbenchError where the program or the text cannot be used.
    """
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise ColdbenchError(f"{path}: cannot be read: {error.strerror}") from error
    if not path.is_file() or not size:
        raise ColdbenchError(f"{path}: is no text to tokenize; name a file that is not empty")
    argv = [os.path.abspath(tokenizer), "-m", str(model.path), "-f", os.path.abspath(path)]
    argv += ["--ids", "--no-escape", "--no-parse-special"]
    with scratch(cache_folder(), "tokenize") as home:
        printed = _output(argv, str(home))
    ids = _parsed(printed, f"{tokenizer} on {path}")
    return Tokens(_checked(ids, vocabulary_of(model), str(path)))


def batched_bench_tokens(vocabulary: int, prompt: int, generated: int) -> Tokens:
    """Return what `llama-batched-bench -npp PROMPT -ntg GENERATED -npl 1` decodes.

    A warm-up of WARM_UP_TOKENS tokens, then in a sequence of its own the prompt and what stands
    for generated text: all of them rand() % vocabulary of a C library that nobody seeded. This is
    the rand() of glibc; on another C library the engine decodes other tokens.
    """
    drawn = _glibc_rand(WARM_UP_TOKENS + prompt + generated)
    return Tokens(drawn % vocabulary, (0, WARM_UP_TOKENS))


def _glibc_rand(count: int) -> Ids:
    """Return the first `count` values of glibc's rand(3) for seed 1, which is the default.

    It is the additive generator x[i] = x[i-3] + x[i-31] modulo 2^32 without the lowest bit, begun
    by a multiplicative one, its first 310 values dropped (glibc, stdlib/random_r.c).
    """
    state = [1]
    for _ in range(30):
        state.append(16807 * state[-1] % (2**31 - 1))
    state += state[:3]
    while len(state) < 34 + 310 + count:
        state.append((state[-31] + state[-3]) & 0xFFFFFFFF)
    return np.array(state[34 + 310 :], dtype=np.int64) >> 1


def _array(path: Path) -> Ids:
    try:
        # A map: a header that claims more than the file holds takes no memory.
        found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, SyntaxError) as error:
        reason = str(error).splitlines()[0] if str(error) else "damaged"
        raise ColdbenchError(f"{path}: is no array of token ids ({reason})") from error
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ColdbenchError(
            f"{path}: holds {found.dtype} in {found.ndim} dimensions; token ids are integers in one"
        )
    if found.dtype.kind == "u" and found.size and int(found.max()) >= 2**63:
        raise ColdbenchError(f"{path}: holds {int(found.max()):,}, which is no token id")
    return np.array(found, dtype=np.int64)


def _parsed(data: bytes, origin: str) -> Ids:
    plain = data.translate(_PUNCTUATION)
    if not _IDS.fullmatch(plain):
        wrong = next(word for word in plain.split() if not word.isdigit())
        raise ColdbenchError(f"{origin}: {wrong[:40]!r} is no token id (a number from 0 up)")
    words = plain.split()
    if any(len(word) > _MAX_DIGITS for word in words):
        raise ColdbenchError(f"{origin}: {max(words, key=len)[:40]!r} is no token id: too large")
    return np.array(list(map(int, words)), dtype=np.int64)


def _checked(ids: Ids, vocabulary: int, origin: str) -> Ids:
    if not 1 <= ids.size <= MAX_TOKENS:
        raise ColdbenchError(f"{origin}: has {ids.size:,} token ids; 1 to {MAX_TOKENS:,} will do")
    outside = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if outside.size:
        at = int(outside[0])
        raise ColdbenchError(
            f"{origin}: token {at + 1:,} is {int(ids[at]):,}, outside the vocabulary of "
            f"{vocabulary:,} ({outside.size:,} such tokens): was it made for another model?"
        )
    return ids


def _output(argv: list[str], home: str) -> bytes:
    # Nothing of the caller's environment: LLAMA_ARG_* would change what is tokenized.
    environment = {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": home,
        "GGML_NO_BACKTRACE": "1",
    }
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TOKENIZER_LIMIT_S,
            env=environment,
            check=False,
        )
    except OSError as error:
        raise ColdbenchError(
            f"{argv[0]}: cannot be started: {error.strerror}; name the engine's llama-tokenize"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ColdbenchError(
            f"{argv[0]}: not ready after {TOKENIZER_LIMIT_S:.0f} s; give it a shorter text"
        ) from error
    if done.returncode:
        said = done.stderr.decode(errors="backslashreplace").strip().splitlines() or ["no message"]
        raise ColdbenchError(f"{argv[0]}: failed with exit status {done.returncode}: {said[-1]}")
    return done.stdout
