"""What must be seen of a gemma.cpp command line: whether the weights were read or mapped.

Peak RSS hardly tells the two apart and physical reads not at all; the kind of the memory and the
bytes asked for by read(2) do. A file that memory cannot hold besides is not judged by its memory:
the kernel may have dropped what was mapped, and an engine that streams weights reads them.
"""

from collections.abc import Iterator, Sequence

from coldbench.drivers.effects import TELLING_BYTES, Check, at_least, below, fits
from coldbench.records import Run


def gemma_effects(args: Sequence[str], run: Run, model_bytes: int) -> Iterator[Check]:
    """Check what `args` ask for against what the run left; `model_bytes` is the file's size.

    What nothing was recorded of is not judged.
    """
    mapped = dict(zip(args[::2], args[1::2], strict=False)).get("--map")
    if mapped is None or model_bytes < TELLING_BYTES:
        return
    memory, half = run.memory, model_bytes / 2
    if mapped == "0":
        yield from at_least("weights read", "bytes asked of read(2)", half, run.io.rchar_bytes)
    if not fits(run, model_bytes):
        return
    if mapped == "0":
        yield from at_least(
            "memory of its own", "anonymous memory", half, memory.anon_at_peak_bytes
        )
    else:
        yield from below("weights not read", "asked of read(2)", half, run.io.rchar_bytes)
        yield from at_least("mapped memory", "file memory", half / 2, memory.file_at_peak_bytes)
