# gemma, scripted: flags as util/args.h reads them, streams as gemma/run.cc writes them.
import hashlib
import mmap
import os
import sys
import time
from pathlib import Path

END = None  # after how many tokens the model ends its text
COUNTER = None  # a file; every seventh text is then another one
OTHER = False  # whether every text is
IGNORES_MAP = False
LOAD_S = PREFILL_S = 0.0
GENERATE_S = 0.05
LINES = True
KNOWN = ("weights", "prompt", "max_generated_tokens", "verbosity", "num_threads", "map")
# --- settings ---


def warn(text):
    sys.stderr.write(text)
    sys.stderr.flush()


def abort(text):
    warn(f"Abort at file.cc:81: {text}\n")
    os.abort()


def arguments():
    found = {"max_generated_tokens": "4096", "verbosity": "1", "map": "-1", "prompt": ""}
    for name in KNOWN:  # whatever else is given is ignored, and the first of a flag counts
        if f"--{name}" in sys.argv[1:]:
            found[name] = sys.argv[sys.argv.index(f"--{name}", 1) + 1]
    if found["map"] not in {"-1", "0", "1"}:
        abort(f"Invalid value for map, got {found['map']}")
    return found


def load(path, mapped):
    try:
        size = os.stat(path).st_size
        file = Path(path).open("rb")  # noqa: SIM115
    except OSError:
        abort(f"Failed to open {path}")
    if size == 0:
        abort(f"Zero-sized file {path}")
    magic = file.read(4)
    if magic != b"SBS\n":
        warn(
            "Warning at blob_store.cc:119: BlobStore header magic "
            f"{int.from_bytes(magic, 'little'):08x} does not match 0a534253.\n"
        )
        abort("Failed to read BlobStore header or directory.")
    if not mapped:
        return Path(path).read_bytes()
    weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sum(weights[at] for at in range(0, size, 4096))
    return weights


def text_of(prompt):
    if OTHER:
        prompt += " but otherwise"
    if COUNTER:
        number = int(Path(COUNTER).read_text()) if Path(COUNTER).exists() else 0
        Path(COUNTER).write_text(str(number + 1))
        prompt += " once more" if number % 7 == 6 else ""
    digest = hashlib.md5(prompt.encode()).hexdigest()
    return [f"word{digest[at]}{at} " for at in range(32)]


def main():
    given = arguments()
    kept = load(given["weights"], given["map"] == "1" and not IGNORES_MAP)
    time.sleep(LOAD_S)
    prompt = given["prompt"] or sys.stdin.readline()
    if not prompt:
        return kept  # interactive, and nobody is there
    warn("\n[ Reading prompt ] ")
    tokens = len(prompt.split()) + 1
    begun = time.monotonic()
    time.sleep(PREFILL_S + 0.002)
    sys.stdout.write("." * tokens)
    prefill = time.monotonic() - begun
    wanted = min(int(given["max_generated_tokens"]), END or 4096)
    if wanted:
        words = text_of(given["prompt"])
        text = "".join(words[at % len(words)] for at in range(wanted))
        begun = time.monotonic()
        time.sleep(GENERATE_S / 2)
        sys.stdout.write("\n\n" + text)
        sys.stdout.flush()
        if LINES:
            warn(
                f"\n\n[ Timing info ] Prefill: {int(prefill * 1000)} ms for {tokens - 1} prompt "
                f"tokens ({(tokens - 1) / prefill:.2f} tokens / sec); Time to first token: "
                f"{int((prefill + time.monotonic() - begun) * 1000)} ms\n"
            )
        time.sleep(GENERATE_S / 2)
        taken = time.monotonic() - begun
        if LINES:
            warn(
                f"\n[ Timing info ] Generate: {int(taken * 1000)} ms for {wanted} tokens "
                f"({wanted / taken:.2f} tokens / sec)\n"
            )
    elif LINES:
        warn("\n[ Timing info ] Generate: 0 ms for 0 tokens (0.00 tokens / sec)\n")
    sys.stdout.write("\n\n")
    return kept


main()
