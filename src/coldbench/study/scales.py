"""The scales of a study: one file, several sizes, and the key `scale` that selects one.

What a scale says is laid over the study's own words: a name of its `models`, `builds`, `workloads`
or `factors` adds to those or takes the place of one, and its `blocks` replace the study's.
"""

from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.study.sweeps import SECTIONS
from coldbench.study.words import Place, suggest

MAPPINGS = (*SECTIONS, "factors")
"""Sections of which a scale gives entries by name."""


def chosen_scale(data: Any, lines: dict[Place, int], path: Path) -> str | None:
    """Return the scale that a study's plain data selects; None where it has none.

    `lines` are the lines of its values. Raises ColdbenchError where the two keys do not fit.
    """
    scales, chosen = data.get("scales"), data.get("scale")
    if scales is None and chosen is None:
        return None
    if not isinstance(scales, dict) or not scales or not _are_mappings(scales):
        place: Place = ("scales",) if scales is not None else ("scale",)
        raise ColdbenchError(
            f"{path}:{lines[place]}: scales: needs a mapping from names to sections of the study"
        )
    if not isinstance(chosen, str) or chosen not in scales:
        place = ("scale",) if chosen is not None else ("scales",)
        said = "the key is missing" if chosen is None else f"unknown scale {chosen!r}"
        raise ColdbenchError(
            f"{path}:{lines[place]}: scale: {said}{suggest(str(chosen or ''), [*scales])}"
        )
    return chosen


def scaled(data: Any, lines: dict[Place, int], scale: str | None) -> tuple[Any, dict[Place, int]]:
    """Return the study's plain data, and the lines of its values, at a scale."""
    if scale is None:
        return data, lines
    laid = data | {}
    places = dict(lines)
    for section, given in data["scales"][scale].items():
        own = data.get(section)
        if section in MAPPINGS and isinstance(own, dict) and isinstance(given, dict):
            laid[section] = own | given
        elif section == "blocks" or (section in MAPPINGS and own is None):
            laid[section] = given
        else:
            continue  # The schema tells of the key, and of what is no mapping.
        under = ("scales", scale, section)
        for place, line in lines.items():
            if place[: len(under)] == under:
                places[(section, *place[len(under) :])] = line
    return laid, places


def _are_mappings(scales: dict[str, Any]) -> bool:
    return all(isinstance(given, dict) for given in scales.values())
