"""The command: what it prints, and how it fails."""

import json
import struct
from pathlib import Path

import pytest

from coldbench.cli import main
from tests.unit.gguf_files import gguf, key

ROOT = Path(__file__).parents[2]


def test_plan_counts_the_demo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLDBENCH_CACHE", str(tmp_path / "cache"))
    main(["plan", "demo"])
    words = {
        line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines() if line
    }
    assert words["cells"] == "28"  # 2 models x 1 workload x 2 states x 7 arms
    assert words["blocks"] == "16"
    assert words["runs"] == str(2 * 7 * (8 + 2 * 6) + 2 * (7 + 2))
    assert not (tmp_path / "cache").exists()


STUDY = """\
models: {toy: {source: {path: toy.gguf}}}
builds: {new: {source: {binaries: bin}}}
workloads: {run: {driver: llama-bench}}
arms: [{name: a, build: new}, {name: b, build: new, args: [-t, 1]}]
blocks: BLOCKS
comparisons: {faster: {treatment: b, control: a, states: cold, margin: MARGIN}}
"""


@pytest.mark.parametrize(
    ("blocks", "margin", "warnings"),
    [
        ("{cold: 8}", "3%", []),
        ("{cold: 8, warm: 1}", "3%", []),  # nothing is claimed of warm runs
        ("{cold: 3, until: {half_width: 3%, max: 8}}", "3%", []),
        (
            "{cold: 8}",
            "1%",
            ["8 blocks cannot resolve the margin; 33 resolve the margin of 1% at 2% noise a run"],
        ),
        (
            "{cold: 6}",
            "5%",
            ["cannot afford one reversed pair: at 2% noise a run a true 5% effect"],
        ),
        (
            "{cold: 5}",
            "5%",
            ["cannot show equivalence, and a difference below 10% is exploratory; 6 resolve"],
        ),
        ("{cold: 1}", "5%", ["1 block cannot give a verdict, which takes 3"]),
    ],
)
def test_plan_warns_of_what_its_blocks_cannot_show(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    blocks: str,
    margin: str,
    warnings: list[str],
) -> None:
    study = tmp_path / "s.yaml"
    study.write_text(STUDY.replace("BLOCKS", blocks).replace("MARGIN", margin))
    (tmp_path / "toy.gguf").touch()
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    main(["plan", str(study)])
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if line.startswith("warning: ")]
    assert len(found) == len(warnings)
    for line, words in zip(found, warnings, strict=True):
        assert line.startswith("warning: cold, faster: ")
        assert words in line
    assert any(line.endswith("the same as a (A/A pair)") for line in lines)


def plan(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, str], list[str]]:
    """Return what `coldbench plan` says: the rows by their first word, and the warnings."""
    study = folder / "s.yaml"
    study.write_text(text)
    main(["plan", str(study)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    warned = [line for line in lines if line.startswith("warning: ")]
    return {line.split()[0]: line for line in lines if line not in warned}, warned


def test_plan_tells_what_is_not_there_and_what_it_cannot_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = STUDY.replace("BLOCKS", "{cold: 8}").replace("MARGIN", "3%")
    rows, warned = plan(text, tmp_path, capsys)
    assert warned == [
        "warning: models.toy: there is no toy.gguf",
        "warning: builds.new: there is no bin",
    ]
    assert "at least 0.0 GiB" in rows["disk"]
    assert rows["disk"].endswith("without toy, of unknown size")
    assert "at least" in rows["time"]
    rows, warned = plan(
        text.replace("args: [-t, 1]", "host: {read_ahead_kb: 64}"), tmp_path, capsys
    )
    assert "warning: b: change host settings; run with --config set_host=true" in warned


def test_plan_tells_budgets_that_cannot_be_measured_on_a_model_that_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    with (tmp_path / "toy.gguf").open("wb") as file:
        file.truncate(4 * 2**20)
    text = STUDY.replace("BLOCKS", "{cold: 8}").replace("MARGIN", "3%")
    text = text.replace("args: [-t, 1]", "budget: 2MiB").replace(
        "{name: a, build: new", "{name: a, build: new, budget: SHARE"
    )
    same = "warning: models.toy: arms a and b come to one budget; leave one out"
    small = (
        "warning: models.toy: arm a: its budget, 20.000% of a model of 4,194,304 bytes, is less "
        "than 1 MiB; give it more"
    )
    for share, said in (("50%", [same]), ("20%", [small]), ("25%", [])):
        _, warned = plan(text.replace("SHARE", share), tmp_path, capsys)
        assert [line for line in warned if "models.toy" in line] == said


def test_plan_counts_what_files_take_and_how_long_tokens_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    standin = (
        "{source: {standin: {architecture: qwen4exp, body: 32MiB, "
        "table: {rows: 63161284, sparse: true}}}}"
    )
    text = STUDY.replace("BLOCKS", "{cold: 8}").replace("MARGIN", "3%")
    text = text.replace("{source: {path: toy.gguf}}", standin)
    short, _ = plan(text, tmp_path, capsys)
    assert short["disk"].split()[1:3] == ["0.0", "GiB"]  # 32 MiB, and a table that is a hole
    large, _ = plan(text.replace("32MiB", "300MiB"), tmp_path, capsys)
    assert large["disk"].split()[1:3] == ["0.3", "GiB"]
    longer, _ = plan(
        text.replace("driver: llama-bench", "driver: llama-bench, args: [-n, 60000]"),
        tmp_path,
        capsys,
    )
    batched = "driver: llama-batched-bench, args: [-npp, 1, -ntg, 60000, -npl, 1]"
    other, _ = plan(text.replace("driver: llama-bench", batched), tmp_path, capsys)
    # 24 runs of 600 s of tokens at 100 tokens/s
    begun, *ended = [int(rows["time"].split()[1]) for rows in (short, longer, other)]
    assert all(235 <= minutes - begun <= 245 for minutes in ended)


def test_plan_tells_which_of_the_users_files_are_not_there_and_counts_all_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shards = (("blk.0.a", 8 * 2**20), ("blk.1.a", 3 * 2**20))
    for index, (name, size) in enumerate(shards):
        keys = [key("split.no", 2, struct.pack("<H", index))]
        keys += [key("split.count", 2, struct.pack("<H", 2))]
        path = tmp_path / f"toy-0000{index + 1}-of-00002.gguf"
        path.write_bytes(gguf(keys, [(name, (size // 4,), 0, 0)], bytes(size)))
    text = STUDY.replace("BLOCKS", "{cold: 8}").replace("MARGIN", "3%")
    text = text.replace("toy.gguf", "toy-00001-of-00002.gguf").replace(
        "{source: {binaries: bin}}",
        "{source: {folder: src}, patches: [a.patch], targets: [llama-bench, gather]}",
    )
    text = text.replace(
        "driver: llama-bench}",
        "driver: llama-bench}, ids: {driver: gather, trace: {recorded: ids.txt}}, "
        "text: {driver: gather, trace: {text: a.txt, tokenizer: new}}",
    )
    rows, warned = plan(text, tmp_path, capsys)
    assert warned == [
        "warning: builds.new: there is no src",
        "warning: builds.new.patches: there is no a.patch",
        "warning: workloads.ids.trace: there is no ids.txt",
        "warning: workloads.text.trace: there is no a.txt",
    ]
    assert "11 MiB" in rows["models"]


def test_inspect_prints_the_header_map(capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", str(ROOT / "tests/data/gguf/ok_v3.gguf")])
    assert "per_layer_token_embd.weight" in capsys.readouterr().out


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["schema"])
    assert "models" in json.loads(capsys.readouterr().out)["properties"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plan", "dmeo"], "did you mean demo?"),
        (["plan", "absent.yaml"], "absent.yaml: no such study file"),
        (["inspect", "absent.gguf"], "absent.gguf"),
        (["inspect", "tests/data/gguf/html_page.gguf"], "this is an HTML page"),
    ],
)
def test_a_users_error_is_one_line_and_status_2(
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("coldbench: error: ")
    assert expected in line
