"""The container of gemma.cpp's weights (.sbs): told from other files, and whether it is whole.

A header of 16 bytes (io/blob_store.cc of gemma.cpp, little-endian): magic, number of blobs, size of
the file. It stands at the beginning or, in newer files, whose first header counts no blobs, at the
end. Nothing else is read: what the blobs are is the engine's affair.
"""

import os
import struct
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header import ModelFile, ModelMap

_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"SBS\n"


def read_sbs(path: Path) -> ModelMap | None:
    """Return the map of an .sbs file, without metadata or tensors; None for any other file.

    Raises ColdbenchError where it is not as long as its header says.
    """
    if not path.is_file():  # opening a pipe would wait for its writer
        return None
    try:
        with path.open("rb", buffering=0) as file:
            # A page or two is looked at: the rest must not come into the page cache with it.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            first = file.read(_HEADER.size)
            if not first.startswith(_MAGIC):
                return None
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _HEADER.size))
            headers = [part for part in (first, file.read()) if len(part) == _HEADER.size]
    except OSError:
        return None  # told by whoever reads it as another file
    for magic, blobs, said in map(_HEADER.unpack, headers):
        if magic == _MAGIC and blobs and said == size:
            real = Path(os.path.realpath(path))
            return ModelMap(Path(os.path.abspath(path)), (ModelFile(real, size),), {}, {}, ())
    raise ColdbenchError(
        f"{path}: begins like an .sbs file, but no header of it says {size:,} bytes: cut off or "
        "damaged; fetch it again"
    )
