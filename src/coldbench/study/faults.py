"""Faults of a study that is well-formed: told with file, line, key and the nearest known name."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.study.reading import at_scale, line_of
from coldbench.study.words import Place


class Faults:
    """Tells of faults in the study file at `path`, read at `scale` (None: the selected one)."""

    def __init__(self, path: Path, scale: str | None = None) -> None:
        self._path = path
        self._scale = scale

    def fail(self, place: Place, message: str) -> ColdbenchError:
        """Return an error that names the file, the line of `place` and its key."""
        key = ".".join(str(part) for part in place)
        line = line_of(self._path, place, self._scale)
        told = f"{self._path}:{line}: {key}: {message}{at_scale(self._scale)}"
        return ColdbenchError(told)

    def known(self, place: Place, kind: str, name: str, known: Iterable[str]) -> None:
        """Raise ColdbenchError, with the nearest name, where `name` is none of the known ones."""
        names = list(known)
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names) or 'none'}"
            raise self.fail(place, f"unknown {kind} {name!r}; {hint}")
