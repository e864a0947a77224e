"""Files and folders in the making: whole or not there, and nothing left of a killed process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import replacing, write_text
from coldbench.common.scratch import scratch

MAKES_A_FOLDER = """\
import sys, time
from pathlib import Path
from coldbench.common.scratch import scratch
with scratch(Path(sys.argv[1]), "kept") as folder:
    (folder / "big").write_text("bytes")
    print("made", flush=True)
    time.sleep(60)
"""
WRITES_A_FILE = """\
import sys, time
from pathlib import Path
from coldbench.common.files import replacing
with replacing(Path(sys.argv[1], "a [b].json")) as temporary:
    temporary.write_text("half")
    print("made", flush=True)
    time.sleep(60)
"""


def begin(program: str, folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    return process


def another_folder(cache: Path) -> None:
    with scratch(cache, "other"):
        pass


def another_file(folder: Path) -> None:
    write_text(folder / "a [b].json", "whole")


@pytest.mark.parametrize(
    ("program", "next_", "left"),
    [
        (MAKES_A_FOLDER, another_folder, "scratch/kept-*"),
        (WRITES_A_FILE, another_file, ".a ?b?.json.*"),
    ],
    ids=["folder", "file"],
)
def test_what_a_killed_process_left_goes_with_the_next_and_a_live_one_keeps_its_own(
    tmp_path: Path, program: str, next_: Callable[[Path], None], left: str
) -> None:
    process = begin(program, tmp_path)
    next_(tmp_path)
    assert len([*tmp_path.glob(left)]) == 1
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len([*tmp_path.glob(left)]) == 1
    next_(tmp_path)
    assert [*tmp_path.glob(left)] == []


def test_a_folder_is_empty_and_goes_with_the_context_also_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path, "one") as folder:
            assert [*folder.iterdir()] == []
            (folder / "file").touch()
            (folder / "moved").touch()
            (folder / "moved").rename(tmp_path / "moved")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "scratch"]
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == [".lock"]


def test_a_file_keeps_its_content_when_writing_it_anew_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "file") as temporary:
            temporary.write_text("half")
            raise LookupError

    write_text(tmp_path / "file", "whole")
    with pytest.raises(LookupError):
        fail()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "whole")]


def test_an_error_shows_what_a_terminal_would_obey() -> None:
    error = ColdbenchError("s.yaml:3: \x1b[31mred\u202e\tname\udcff\nsecond line, größer")
    assert str(error) == r"s.yaml:3: \x1b[31mred\u202e\tname\udcff" + "\nsecond line, größer"
    os.fsencode(str(error))
