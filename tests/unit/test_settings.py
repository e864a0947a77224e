"""The settings about other work: strict, with units, and documented as they are."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from coldbench.common.errors import ColdbenchError
from coldbench.study.quiet import QuietSettings
from coldbench.study.settings import open_study

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"quiet": "loud"}, "--config quiet: .*'repeat' or 'warn'"),
        ({"quiet_limits": {"wait": 60}}, "--config quiet_limits.wait: a value with its unit"),
        ({"quiet_limits": {"other_cpu": "5"}}, "--config quiet_limits.other_cpu: .*per cent"),
        ({"quiet_limits": {"repeats": "-1"}}, "--config quiet_limits.repeats: "),
        ({"quiet_limits": {"wiat": "1s"}}, "quiet_limits.wiat: unknown setting; did you mean wait"),
    ],
)
def test_a_wrong_limit_is_named_with_the_mend(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(ColdbenchError, match=expected):
        open_study({"study": "demo", **wrong}, ROOT)


def test_limits_of_the_command_line_are_text() -> None:
    given = {"wait": "2min", "repeats": "1", "other_cpu": "20%", "other_disk": "1MiB"}
    limits = open_study({"study": "demo", "quiet_limits": given}, ROOT)[0].quiet_limits
    assert (limits.wait, limits.repeats) == (120, 1)
    assert (limits.other_cpu, limits.other_disk) == (0.2, 2**20)


def test_the_file_has_the_defaults() -> None:
    shipped = YAML(typ="safe").load(ROOT / "config" / "config.yaml")
    assert QuietSettings.model_validate(shipped) == QuietSettings()


@pytest.mark.parametrize(
    ("given", "locked"), [("true", True), ("false", False), (True, True), (False, False)]
)
def test_locked_is_a_switch_however_it_is_written(given: object, locked: bool) -> None:
    assert open_study({"study": "demo", "locked": given}, ROOT)[0].locked is locked


@pytest.mark.parametrize("given", ["yes", 1, "", None, "True "])
def test_locked_is_nothing_else(given: object) -> None:
    with pytest.raises(ColdbenchError, match=r"--config locked: .*valid boolean"):
        open_study({"study": "demo", "locked": given}, ROOT)
