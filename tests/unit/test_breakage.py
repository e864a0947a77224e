"""What users, disks and other programs do to our files: one clear message, and nothing lost."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError, machine_fault
from coldbench.common.files import read_json
from coldbench.common.job import job
from coldbench.common.locks import keep_alone, machine
from coldbench.measure.bench import empty_home
from coldbench.measure.journal import Journal
from coldbench.study.plan import Plan
from coldbench.study.settings import open_study

from .test_journal import planned, record

STUDY = """\
models: {m: {source: {path: m.gguf}}}
builds: {b: {source: {binaries: bin}}}
workloads: {w: {driver: llama-batched-bench, args: [-npp, 512], time_limit: 20s}}
arms: {matrix: {build: [b]}, name: "{build}-x"}
blocks: {cold: 1}
"""


def refused(tmp_path: Path, old: str, new: str) -> str:
    assert STUDY.count(old) == 1
    path = tmp_path / "s.yaml"
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(ColdbenchError) as caught:
        Plan(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{build}-x", "../{build}", "s.yaml:4: arms.name: calls an arm '../b'"),
        ("{build}-x", "{build:>99999999999}", "s.yaml:4: arms.name: {build:>99999999999}"),
        ("{build}-x", "{build.__class__}", "use the factors in braces: build"),
        ("{build}-x", "", "arms.name: calls an arm ''"),
        ("[b]", "[]", "s.yaml:4: arms.matrix.build"),
        ("512", '"a\\0b"', "s.yaml:3: 'a\\x00b' has a character"),
        ("512", '"a\\ud800b"', "s.yaml:3: 'a\\ud800b' has a character"),
        ("20s", "9" * 400 + "h", "s.yaml:3: workloads.w.time_limit: a duration must be"),
        ("time_limit: 20s", "output_limit: " + "9" * 400 + "GiB", "a size must be"),
        ("m.gguf", "~no-such-user/m.gguf", "models.m.source.path: ~no-such-user"),
        ("m.gguf", "a" * 5000, "models.m.source.path: is too long"),
        ("m.gguf", "[" * 3000 + "]" * 3000, "nested too deeply"),
    ],
)
def test_a_hostile_study_is_refused_by_key(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert expected in refused(tmp_path, old, new)


def test_aliases_that_multiply_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    path = tmp_path / "s.yaml"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ColdbenchError, match="do aliases"):
        Plan(path)


@pytest.mark.parametrize("name", ["a{b}.yaml", "..yaml", "new\nline.yaml"])
def test_a_study_whose_name_cannot_name_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(STUDY)
    with pytest.raises(ColdbenchError, match="choose another name"):
        open_study({"study": str(path)}, tmp_path)


def test_a_journal_whose_manifest_is_gone_is_not_taken_for_other_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "b")
    journal.plan([planned(1)])
    journal.append(record(planned(1)))
    journal.manifest_path.write_text("")
    with pytest.raises(ColdbenchError, match=r"does not list run 001\.1\.001"):
        Journal(tmp_path, "b")


@pytest.mark.parametrize("line", [b'{"run": "x"}\n', b"\xff\xfe\n", b"[]\n"])
def test_a_damaged_manifest_is_named_with_its_line(tmp_path: Path, line: bytes) -> None:
    journal = Journal(tmp_path, "b")
    journal.plan([planned(1)])
    with journal.manifest_path.open("ab") as stream:
        stream.write(line)
    with pytest.raises(ColdbenchError, match=r"b\.manifest\.jsonl:2: "):
        Journal(tmp_path, "b")


@pytest.mark.parametrize("text", ["{}", "[]", "3", "[" * 100_000])
def test_a_record_of_another_form_is_one_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ColdbenchError, match=r"r\.json: unreadable"):
        read_json(tmp_path / "r.json", ["content"])


def test_the_engines_home_is_emptied_whatever_it_became(tmp_path: Path) -> None:
    home = empty_home(tmp_path)
    (home / "d" / "e").mkdir(parents=True)
    (home / "d" / "e").chmod(0)
    (home / "d").chmod(0)
    assert list(empty_home(tmp_path).iterdir()) == []
    home.rmdir()
    home.touch()
    assert list(empty_home(tmp_path).iterdir()) == []
    home.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    home.symlink_to(tmp_path / "elsewhere")
    assert list(empty_home(tmp_path).iterdir()) == []
    assert not home.is_symlink()
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_a_lock_or_results_folder_that_cannot_be_opened_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "file" / "lock"))
    with pytest.raises(ColdbenchError, match="set COLDBENCH_LOCK"), machine(alone=True, purpose=""):
        pass
    with pytest.raises(ColdbenchError, match="--config results"):
        keep_alone(tmp_path / "file" / "study")


def test_a_job_tells_a_full_disk_in_one_line_and_a_fault_of_ours_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    kept, raising = (root.handlers[:], root.level), logging.raiseExceptions
    try:
        with pytest.raises(SystemExit), job(tmp_path / "log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/big")
        said = capsys.readouterr().err
        assert "error: /big: No space left on device; mend that" in said
        assert "Traceback" not in said
        with pytest.raises(SystemExit), job(Path("/dev/null/log")):
            raise AssertionError("must not begin")
        assert "error: /dev/null: File exists; mend that" in capsys.readouterr().err
        with pytest.raises(SystemExit), job(tmp_path / "log"):
            raise OSError(errno.EINVAL, "a fault of ours")
        assert "Traceback" in capsys.readouterr().err
    finally:
        root.handlers[:], level = kept[0], kept[1]
        root.setLevel(level)
        logging.raiseExceptions = raising
    assert machine_fault(OSError(errno.EINVAL, "x")) is None


def test_the_command_line_survives_a_reader_that_has_enough() -> None:
    program = str(Path(sys.executable).with_name("coldbench"))
    for command in (f"{program} schema | head -c 1", f"{program} schema >&-"):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.stderr == ""
    full = subprocess.run(
        ["sh", "-c", f"{program} schema > /dev/full"], capture_output=True, text=True, check=False
    )
    assert "No space left on device" in full.stderr.splitlines()[0]
    assert "Traceback" not in full.stderr
