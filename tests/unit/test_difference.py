"""`coldbench diff`: what two studies' provenances do not share, and nothing that is incidental."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from coldbench.cli import main
from coldbench.common.errors import ColdbenchError
from coldbench.publish.difference import difference

PATCH = "--- a/x.c\n+++ b/x.c\n@@ -1 +1 @@\n-old\n+{}\n"

KEYS = ("study", "coldbench", "packages", "models", "builds", "machines", "cells")
ODD = json.dumps({key: {"x": "y"} for key in KEYS})


def provenance(cache: str = "/home/one/.cache") -> dict[str, Any]:
    program = f"{cache}/builds/0123456789abcdef/bin/engine"
    model = f"{cache}/models/0123456789abcdef/toy.gguf"
    arguments = ["-m", model, "-t", "2"]
    return {
        "study": {"file": f"{cache}/toy.yaml", "sha256": "1", "text": "title: toy\nblocks: 2\n"},
        "lock": None,
        "coldbench": {"commit": "a" * 40, "protocol": 2, "record_format": 2},
        "python": "3.11.7",
        "packages": {"numpy": "2.4.6", "scipy": "1.17.1"},
        "models": {
            "toy": {
                "path": model,
                "files": [{"path": model, "sha256": "2", "size": 10, "mtime_ns": 1, "ctime_ns": 1}],
            }
        },
        "builds": {
            "patched": {
                "source": {"pypi": "engine==1"},
                "patches": [{"path": "p.patch", "sha256": "3", "text": PATCH.format("new")}],
                "cmake": {"CMAKE_BUILD_TYPE": "Release"},
                "seconds": 1.5,
                "ccache": {"hits": 0},
                "programs": {"engine": {"path": program, "sha256": "4"}},
                "libraries": {},
                "log": f"{cache}/builds/0123456789abcdef/build.log",
            }
        },
        "machines": [{"kernel": "6.18", "cpu_model": "x"}],
        "cells": {
            f"{arm}{number}": {
                "model": "toy",
                "workload": "pp512",
                "arm": arm,
                "argv": [program, *arguments],
                "environment": {"LANG": "C.UTF-8"},
            }
            for number, arm in enumerate(("lazy", "eager"))
        },
    }


def compared(tmp_path: Path, one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    for name, value in (("one", one), ("two", two)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "provenance.json").write_text(json.dumps(value))
    return difference(tmp_path / "one", tmp_path / "two" / "provenance.json")


def test_other_places_and_times_are_no_difference(tmp_path: Path) -> None:
    one, two = provenance(), provenance("/srv/elsewhere")
    two["models"]["toy"]["files"][0]["mtime_ns"] = 99
    two["builds"]["patched"] |= {"seconds": 80.0, "ccache": {"hits": 90}}
    assert compared(tmp_path, one, two) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("packages", "numpy"), "2.5.5", "packages.numpy: 2.4.6 -> 2.5.5"),
        (("coldbench", "commit"), "b" * 40, f"coldbench.commit: {'a' * 40} -> {'b' * 40}"),
        (("python",), "3.12.1", "python: 3.11.7 -> 3.12.1"),
        (("machines",), [{"kernel": "6.19", "cpu_model": "x"}], "machines[0].kernel: 6.18 -> 6.19"),
        (
            ("machines",),
            [{"kernel": "6.18", "cpu_model": "x"}, {"kernel": "7"}],
            "machines: [0].kernel=6.18, [0].cpu_model=x -> "
            "[0].kernel=6.18, [0].cpu_model=x, [1].kernel=7",
        ),
        (
            ("models", "toy", "files", 0, "sha256"),
            "9",
            "models.toy.files[0].sha256: 2 -> 9",
        ),
        (
            ("builds", "patched", "cmake", "GGML_NATIVE"),
            "OFF",
            "builds.patched.cmake.GGML_NATIVE: nothing -> OFF",
        ),
        (
            ("builds", "patched", "patches", 0, "text"),
            PATCH.format("newer"),
            "builds.patched.patches[0].text:\n"
            "    @@ -4,2 +4,2 @@\n     -old\n    -+new\n    ++newer",
        ),
        (("study", "text"), "title: toy\nblocks: 6\n", "study.text:\n    @@ -1,2 +1,2 @@\n"
         "     title: toy\n    -blocks: 2\n    +blocks: 6"),
        (("lock",), "models: {}", "lock: nothing -> models: {}"),
    ],
)  # fmt: skip
def test_a_change_is_told_with_its_place(
    tmp_path: Path, path: tuple[Any, ...], value: Any, told: str
) -> None:
    two = copy.deepcopy(provenance())
    place: Any = two
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert compared(tmp_path, provenance(), two) == [told]


def test_a_change_that_cells_share_is_told_once(tmp_path: Path) -> None:
    two = provenance("/srv/elsewhere")
    for cell in two["cells"].values():
        cell["argv"][-1] = "4"
    two["cells"]["lazy0"]["environment"]["GGML_X"] = "1"
    assert compared(tmp_path, provenance(), two) == [
        "cells: argv: <patched>/engine -m <toy> -t 2 -> <patched>/engine -m <toy> -t 4 (all cells)",
        "cells: environment.GGML_X: nothing -> 1 (toy, pp512, lazy)",
    ]


def test_a_missing_cell_is_told(tmp_path: Path) -> None:
    two = provenance()
    del two["cells"]["eager1"]
    assert compared(tmp_path, provenance(), two) == ["cells: only in the first (toy, pp512, eager)"]


def test_exit_status_is_that_of_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = provenance() | {"python": "3.12.1"}
    assert compared(tmp_path, provenance(), two)
    main(["diff", str(tmp_path / "one"), str(tmp_path / "one")])
    assert capsys.readouterr().out == "No difference.\n"
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(tmp_path / "one"), str(tmp_path / "two")])
    assert ended.value.code == 1
    assert capsys.readouterr().out == "python: 3.11.7 -> 3.12.1\n"


@pytest.mark.parametrize("text", ["{}", "[1]", "not json", '{"study": 1}', ODD])
def test_what_is_no_provenance_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ColdbenchError, match=r"p\.json: is not a provenance"):
        difference(tmp_path / "p.json", tmp_path / "p.json")
    with pytest.raises(ColdbenchError, match="does not exist; name a study's results folder"):
        difference(tmp_path, tmp_path)
