"""What is said of a study with some of its words changed."""

from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.registry import check_study
from coldbench.study.plan import Plan


def told(folder: Path, study: str, *changes: tuple[str, str]) -> str:
    """Write a study with each old text replaced by a new one; return why it is refused, or ""."""
    for old, new in changes:
        assert old in study
        study = study.replace(old, new)
    path = folder / "s.yaml"
    path.write_text(study)
    try:
        check_study(Plan(path))
    except ColdbenchError as error:
        return str(error)
    return ""
