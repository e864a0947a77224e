"""The workflow's own settings (config/config.yaml and --config): which study, and where."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, ValidationError

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded
from coldbench.study.find import find_study
from coldbench.study.plan import Plan
from coldbench.study.quiet import QuietLimits, QuietSettings
from coldbench.study.words import suggest


def _switch(value: Any) -> Any:
    # On the command line Snakemake knows True and False only; true is text to it.
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


class Settings(QuietSettings):
    """The keys of config/config.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    study: str
    results: str = "results"
    cache: str = ""
    locked: Annotated[bool, BeforeValidator(_switch)] = False
    set_host: Annotated[bool, BeforeValidator(_switch)] = False


def open_study(config: Mapping[str, Any], root: str | os.PathLike[str]) -> tuple[Settings, Plan]:
    """Validate the settings and open the study they name; `root` is the checkout.

    A `cache` setting is handed to jobs as $COLDBENCH_CACHE. Raises ColdbenchError.
    """
    for key in config:
        if key not in Settings.model_fields:
            raise ColdbenchError(
                f"--config {key}: unknown setting{suggest(str(key), [*Settings.model_fields])}"
            )
    path = find_study(config.get("study"), Path(root))
    try:
        settings = Settings.model_validate(dict(config))
    except ValidationError as error:
        raise ColdbenchError(f"--config {_told(error.errors(include_url=False)[0])}") from None
    if settings.cache:
        os.environ["COLDBENCH_CACHE"] = str(expanded(settings.cache).resolve())
    results = str(expanded(settings.results))
    _usable("--config results", results)
    _usable(str(path), path.stem)
    plan = Plan(path)
    changing = [arm for arm in plan.arms if arm.host.given]
    if changing and not settings.set_host:
        changed = dict.fromkeys(f"{k} {v}" for arm in changing for k, v in arm.host.given.items())
        raise ColdbenchError(
            f"{path}: sets {', '.join(changed)} on this machine while "
            f"{', '.join(arm.name for arm in changing)} run, and puts back what was there; "
            "allow it with --config set_host=true"
        )
    return settings.model_copy(update={"results": results}), plan


def _told(fault: Mapping[str, Any]) -> str:
    place = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        known = suggest(str(fault["loc"][-1]), [*QuietLimits.model_fields])
        return f"{place}: unknown setting{known}"
    wanted = fault["msg"].removeprefix("Value error, ")
    mend = "; quote it" if fault["type"] == "string_type" else ""
    return f"{place}: {wanted}, not {fault['input']!r}{mend}"


def _usable(place: str, text: str) -> None:
    """Refuse what cannot be part of the results' path: Snakemake reads braces as wildcards."""
    if text.strip(".") == "" or any(letter in "{}" or ord(letter) < 32 for letter in text):
        raise ColdbenchError(
            f"{place}: {text!r} cannot name a results folder (empty, dots alone, braces or control "
            "characters); choose another name"
        )
