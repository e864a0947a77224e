"""A scripted gemma.cpp, which prints and does what the real one does, its traps included."""

import struct
import sys
from pathlib import Path

ENGINE = Path(__file__).parent / "engine.py"


def write_engine(folder: Path, settings: str = "") -> Path:
    """Write the program `gemma` into a folder; `settings` are further lines of Python at its head.

    They stand for a patch: `END = 5` ends each text after five tokens, for example.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "gemma"
    script = ENGINE.read_text(encoding="utf-8").replace("# --- settings ---", settings)
    program.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    program.chmod(0o755)
    return program


def write_weights(path: Path, size: int) -> Path:
    """Write an .sbs file of `size` bytes, with its header at the end; not sparse."""
    block = bytes(range(256)) * 4096
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQ", b"SBS\n", 0, 65536))
        while file.tell() < size - 16:
            file.write(block[: size - 16 - file.tell()])
        file.write(struct.pack("<4sIQ", b"SBS\n", 3, size))
    return path
