"""llama-results through a stand-in that writes a real file, sound or spoilt."""

import hashlib
import struct
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.drivers import logits
from coldbench.drivers.base import OUT, Output, Result
from coldbench.drivers.logits import LogitsDriver
from coldbench.records import Exit
from tests.unit.driver_outputs import OK, stub, workload
from tests.unit.gguf_files import gguf, key, text

DRIVER = LogitsDriver()
WORK = workload("llama-results", "-c", "256", "-ub", "64", prompt="one two")
TOKENS, LOGITS = [7, 11], [0.5, -1.25, 3.0, 8.0, 0.0, -2.5]
I32, F32 = 26, 0


def results(
    tokens: list[int] = TOKENS,
    logits: list[float] = LOGITS,
    model: str = "/a/model.gguf",
    kinds: tuple[int, int] = (I32, F32),
) -> bytes:
    """Return what the tool writes: the shape of its logits is (tokens, vocabulary), as there."""
    count = len(tokens)
    data = struct.pack(f"<{count}i", *tokens)
    padded = data + bytes(-len(data) % 32)
    return gguf(
        [key("path_model", 8, text(model))],
        [
            ("tokens", (count,), kinds[0], 0),
            ("logits", (count, len(logits) // max(count, 1)), kinds[1], len(padded)),
        ],
        padded + struct.pack(f"<{len(logits)}f", *logits),
    )


def odd() -> bytes:
    """Return a file with seven logits for two tokens."""
    data = struct.pack("<2i", *TOKENS) + bytes(24) + struct.pack("<7f", *LOGITS, 1.0)
    tensors = [("tokens", (2,), I32, 0), ("logits", (7,), F32, 32)]
    return gguf([key("path_model", 8, text("/a/model.gguf"))], tensors, data)


def run(folder: Path, content: bytes | None, end: Exit = OK) -> Result:
    """Run the command line with a stand-in that writes `content` to the file it is told."""
    out, source = folder / "written", folder / "source"
    out.unlink(missing_ok=True)
    argv = [str(out) if arg == OUT else arg for arg in DRIVER.argv(WORK, "p", "/m", [])]
    script = "exit 0"
    if content is not None:
        source.write_bytes(content)
        script = f"cp '{source}' '{argv[argv.index('-o') + 1]}'"
    done = stub(folder, script)
    return DRIVER.read(WORK, Output(end or done.exit, done.stdout, done.stderr, written=out))


def test_the_command_line_is_the_same_in_every_run_and_has_the_prompt_as_written():
    work = workload("llama-results", "-t", "2", prompt=r"-x \n it's", rpc={"threads": "1"})
    argv = DRIVER.argv(work, "/b/p", "/m", ["-lzm", "on"])
    assert argv == [
        *("/b/p", "-m", "/m", "--rpc", "{rpc}", "-lv", "4", "-o", OUT, "-p", r"-x \n it's"),
        *("-t", "2", "-lzm", "on"),
    ]


@pytest.mark.parametrize("flag", ["-o", "--output-file", "--check", "-f", "-m", "--rpc"])
def test_flags_of_the_driver_are_refused_in_an_arm(flag: str):
    with pytest.raises(ColdbenchError, match=f"arm args: {flag}: the driver sets this"):
        DRIVER.check(WORK, [flag, "x"])


def test_the_digest_is_of_tokens_and_logits_alone(tmp_path: Path):
    result = run(tmp_path, results())
    assert (result.status, result.reason, result.tokens) == ("ok", "", 2)
    bare = struct.pack("<2i", *TOKENS) + struct.pack("<6f", *LOGITS)
    assert result.digest == hashlib.md5(bare).hexdigest()
    assert run(tmp_path, results(model="/quite/another/path.gguf")).digest == result.digest


def test_one_bit_and_one_token_are_seen(tmp_path: Path):
    one_bit = bytearray(results())
    one_bit[-4] ^= 1
    digests = {
        run(tmp_path, content).digest
        for content in (results(), bytes(one_bit), results(tokens=[7, 12]))
    }
    assert len(digests) == 3


def test_logits_of_many_chunks_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logits, "_CHUNK_VALUES", 2)
    bare = struct.pack("<2i", *TOKENS) + struct.pack("<6f", *LOGITS)
    assert run(tmp_path, results()).digest == hashlib.md5(bare).hexdigest()
    late = run(tmp_path, results(logits=[*LOGITS[:4], float("nan"), 0.0]))
    assert (late.status, late.reason) == ("invalid", "logits that are not finite numbers")
    one_other = run(tmp_path, results(logits=[1.0, 2.0, 1.0, 1.0, 1.0, 1.0]))
    assert one_other.status == "ok"  # the last chunk alone does not tell
    same = run(tmp_path, results(logits=[1.0] * 6))
    assert same.reason == "degenerate: all logits are one number"


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (None, "void", "no logits: exit 0 without a file of them"),
        (b"", "void", "cut off"),
        (results()[:-1], "void", "cut off; is the disk full?"),
        (b"error: out of disk space", "void", "cut off"),
        (results(logits=[*LOGITS[:5], float("nan")]), "invalid", "not finite"),
        (results(logits=[*LOGITS[:5], float("inf")]), "invalid", "not finite"),
        (results(logits=[0.0] * 6), "invalid", "degenerate: all logits are one number"),
        (results(tokens=[], logits=[]), "invalid", "0 logits do not belong to 0 tokens"),
        (results(logits=[]), "invalid", "0 logits do not belong to 2 tokens"),
        (odd(), "invalid", "7 logits do not belong to 2 tokens"),
        (results(kinds=(I32, I32)), "invalid", "no tensor logits of type F32"),
        (results(kinds=(F32, F32)), "invalid", "no tensor tokens of type I32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_whole_set_of_logits_gives_no_digest(
    tmp_path: Path, content: bytes | None, status: str, reason: str
):
    result = run(tmp_path, content)
    assert result.status == status
    assert reason in result.reason
    assert result.digest is None


def test_a_process_that_failed_gives_no_digest_whatever_it_wrote(tmp_path: Path):
    result = run(tmp_path, results(), Exit(ended="exit", code=1))
    assert (result.status, result.reason, result.digest) == ("failed", "exit status 1", None)
