"""A study file is taken as it was written, or refused with its line and the mend."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldbench.common.errors import ColdbenchError
from coldbench.study.plan import Plan
from coldbench.study.reading import read_study

STUDY = """\
models:
  toy: {source: {path: toy.gguf}}
builds:
  new: {source: {binaries: bin}}
workloads:
  run: {driver: command, program: stub, metrics: {prompt_tps: {regex: '(\\d+)'}}}
arms:
  - {name: one, build: new}
blocks: {cold: 3}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ColdbenchError) as caught:
        Plan(write(folder, text))
    return str(caught.value)


def test_a_plain_study_is_read(tmp_path: Path) -> None:
    plan = Plan(write(tmp_path, STUDY))
    assert plan.name == "study"
    assert [arm.name for arm in plan.arms] == ["one", "one-again"]
    assert plan.block("toy", "run", 1).states == ("cold",)


@pytest.mark.parametrize(
    "word", ["off", "on", "yes", "no", "00", "0123456", "1e3", "12e4567", "null", "~", "-0.50"]
)
def test_arguments_reach_argv_as_written(tmp_path: Path, word: str) -> None:
    text = STUDY.replace("build: new}", f"build: new, args: [--flag, {word}]}}")
    assert Plan(write(tmp_path, text)).arms[0].args == ("--flag", word)


@pytest.mark.parametrize("commit", ["257813839", "0123456", "12e4567"])
def test_a_commit_of_digits_stays_text(tmp_path: Path, commit: str) -> None:
    source = f"{{pypi: engine==1.0, sha256: {'0' * 64}, commit: {commit}}}"
    text = STUDY.replace("{binaries: bin}", f"{source}, targets: [stub]")
    assert Plan(write(tmp_path, text)).builds["new"].source.commit == commit  # type: ignore[union-attr]


def test_an_environment_value_is_text_too(tmp_path: Path) -> None:
    text = STUDY.replace("build: new}", "build: new, environment: {FLASH: on, NGL: 00}}")
    assert Plan(write(tmp_path, text)).arms[0].environment == {"FLASH": "on", "NGL": "00"}


def test_flags_given_as_a_mapping_are_refused_not_dropped(tmp_path: Path) -> None:
    message = refusal(
        tmp_path, STUDY.replace("build: new}", "build: new, args: {flash-attn: on, mmap: false}}")
    )
    assert "study.yaml:8: arms.0.args" in message


def test_every_unknown_key_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    message = refusal(tmp_path, STUDY.replace("blocks:", "bloks:").replace("name: one", "nam: one"))
    lines = message.splitlines()
    assert any("study.yaml:9: unknown key bloks; did you mean blocks?" in line for line in lines)
    assert any("study.yaml:8: unknown key arms.0.nam; did you mean name?" in line for line in lines)


def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    message = refusal(tmp_path, STUDY + "blocks: {cold: 5}\n")
    assert "study.yaml:10: key 'blocks' stands twice (first on line 9)" in message


def test_two_arms_of_one_name_are_refused(tmp_path: Path) -> None:
    text = STUDY.replace("blocks:", "  - {name: one, build: new, args: [x]}\nblocks:")
    assert "two arms are called one" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("build: new", "build: nwe", "unknown build 'nwe'; did you mean new?"),
        ("driver: command", "driver: comand", "unknown driver 'comand'; did you mean command?"),
        ("{cold: 3}", "{cold: 0}", "at least one cold or warm block"),
        ("{cold: 3}", "{cold: three}", "study.yaml:9: blocks.cold:"),
        (
            "{path: toy.gguf}",
            "{path: a, pypi: b==1}",
            "exactly one of the keys standin, pypi, hf, url, path",
        ),
        ("(\\d+)", "(\\d+", "not a regular expression"),
        ("name: one", "name: ../one", "study.yaml:8: arms.0.name:"),
        ("toy:", "'a b':", "study.yaml:2: models"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in refusal(tmp_path, STUDY.replace(old, new))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty, or not a mapping"),
        ("- a\n- b\n", "empty, or not a mapping"),
        ("a: [\n", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("? [a, b]\n: c\n", "a key must be a single word"),
        ("a: &a [*a]\n", "contains itself"),
        ("\x00", "not valid YAML"),
    ],
)
def test_what_is_no_study_file_is_said(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_an_unreadable_study_is_said(tmp_path: Path) -> None:
    with pytest.raises(ColdbenchError, match="cannot be read"):
        read_study(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"title: \xe9\n")
    with pytest.raises(ColdbenchError, match="not UTF-8"):
        read_study(tmp_path / "latin.yaml")


@given(st.text(max_size=200))
def test_no_text_makes_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "study.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ColdbenchError):
        read_study(path)
