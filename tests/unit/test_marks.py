"""When a text first stood on a stream, timed by the real launcher."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from coldbench.drivers.base import Mark
from coldbench.measure.launcher import Launched, LauncherError, environment_for, launch

Run = Callable[..., Launched]

SPEAKER = """\
import sys, time
def say(text):
    before = time.time()
    sys.stderr.write(text); sys.stderr.flush()
    print(before, time.time(), flush=True)
time.sleep(0.11)
sys.stderr.write("[ Reading ")
time.sleep(0.11)
say("prompt ] ")
time.sleep(0.17)
say("." * 70000 + "second")
time.sleep(0.13)
say("third")
time.sleep(0.19)
say("Time to first token: 7 ms\\n")
time.sleep(0.3)
say("[ Reading prompt ] again")
"""
READING = Mark("stderr", "[ Reading prompt ]")
TOKEN = Mark("stderr", "Time to first token")


def known(value: float | None) -> float:
    assert value is not None
    return value


@pytest.fixture
def run(launcher: Path, tmp_path: Path) -> Run:
    def run(*argv: str, marks: Sequence[Mark] = ()) -> Launched:
        return launch(
            launcher,
            argv,
            environment_for({}, tmp_path / "home"),
            stdout=tmp_path / "stdout",
            stderr=tmp_path / "stderr",
            time_limit_s=60,
            output_limit_bytes=2**20,
            marks=marks,
        )

    return run


def test_a_mark_is_the_moment_of_its_first_appearance(run: Run, tmp_path: Path) -> None:
    marks = (READING, Mark("stderr", "second"), Mark("stderr", "third"), TOKEN)
    done = run(sys.executable, "-c", SPEAKER, marks=marks)
    exec_s = datetime.fromisoformat(done.started).timestamp()
    late = []
    for seen, said in zip(done.marks, (tmp_path / "stdout").read_text().splitlines(), strict=False):
        before, after = (float(word) - exec_s for word in said.split())
        assert seen is not None
        assert before - 0.001 < seen < after + 0.5
        late.append(seen - after)
    assert known(done.marks[3]) < known(done.exit.wall_s) - 0.25
    # late by a wake-up and not by a tick of 50 ms
    assert sorted(late)[1] < 0.010


def test_a_text_at_the_very_end_or_the_very_beginning_is_seen(run: Run) -> None:
    done = run("/bin/sh", "-c", "echo begin; echo end >&2", marks=(
        Mark("stdout", "begin\n"), Mark("stderr", "end")
    ))  # fmt: skip
    begin, end = map(known, done.marks)
    assert 0 < begin <= end + 0.02
    assert end < known(done.exit.wall_s) + 0.05


def test_a_text_that_never_comes_has_no_time(run: Run) -> None:
    assert run("/bin/echo", "x", marks=(TOKEN, Mark("stdout", "x"))).marks[0] is None


def test_who_asks_for_no_mark_gets_none(run: Run, tmp_path: Path) -> None:
    assert run("/bin/echo", "x").marks == ()
    assert run(str(tmp_path / "missing"), marks=(TOKEN,)).marks == ()


def test_a_mark_that_is_none_is_an_error(run: Run) -> None:
    with pytest.raises(LauncherError):
        run("/bin/true", marks=(Mark("stdout", ""),))
    with pytest.raises(LauncherError):
        run("/bin/true", marks=(TOKEN,) * 5)


def test_a_talkative_program_is_hardly_slower_for_it(run: Run) -> None:
    script = "import sys, time\nfor i in range(300):\n    sys.stderr.write('.'); time.sleep(0.001)"
    begun = time.monotonic()
    done = run(sys.executable, "-c", script, marks=(TOKEN,))
    assert done.exit.code == 0
    assert done.marks == (None,)
    assert time.monotonic() - begun < 5
