"""Which file a study's name means."""

import difflib
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded


def find_study(name_or_path: object, root: Path) -> Path:
    """Return the file of a study given by path, or by name from config/studies under `root`.

    Raises ColdbenchError where there is none, naming what there is.
    """
    if not isinstance(name_or_path, str) or not name_or_path:
        raise ColdbenchError(
            f"study={name_or_path!r}: was read as a number or nothing; quote it: "
            "--config 'study=\"NAME_OR_PATH\"'"
        )
    path = expanded(name_or_path)
    if path.suffix in {".yaml", ".yml"} or "/" in name_or_path:
        if not path.is_file():
            raise ColdbenchError(f"{path}: no such study file")
        return path
    folder = root / "config" / "studies"
    path = folder / f"{name_or_path}.yaml"
    if not path.is_file():
        known = sorted(
            file.stem for file in folder.glob("*.yaml") if not file.name.endswith(".lock.yaml")
        )
        close = difflib.get_close_matches(name_or_path, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
        raise ColdbenchError(f"{path}: no such study; {hint}")
    return path
