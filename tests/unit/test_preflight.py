"""What is refused before a run, and intents in the flags of a build."""

from pathlib import Path

import pytest

from coldbench.drivers.registry import driver_for
from coldbench.measure import preflight
from coldbench.measure.journal import PlannedRun
from coldbench.measure.launcher import environment_for
from coldbench.study.specs import Arm
from coldbench.study.treatment import Intent
from coldbench.study.workloads import Stream

from .test_delivery import BATCHED

HELP = """\
#!/bin/sh
# reads LLAMA_ARG_LAZY_MODE, LLAMA_ARG_MMAP and GGML_SCHED_DEBUG
printf -- '-h, --help  print this\\n-m, --model FNAME  the model\\n--no-mmap  read it\\n'
for flag in -npp -ntg -npl -lv --output-format; do echo "$flag N  as ever"; done
"""
MODEL = Path(__file__).parent.parent / "data" / "gguf" / "ok_v3.gguf"


def program(folder: Path, script: str = HELP) -> Path:
    path = folder / "bin" / "llama-batched-bench"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def refusal(path: Path, environment: dict[str, str], home: Path) -> str | None:
    bare = environment_for({}, home)
    planned = PlannedRun(
        **dict.fromkeys(("block", "pass", "position"), 1),
        **dict.fromkeys(("run", "arm", "cell"), "x"),
        build="b",
        state="cold",
        hashes={},
        argv=driver_for(BATCHED).argv(BATCHED, str(path), str(MODEL), []),
        environment=environment_for(environment, home),
    )
    return preflight.check(planned, Arm(name="x", build="b"), BATCHED, bare, MODEL)[0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("LLAMA_ARG_LAZY_MODE", None),
        ("LLAMA_ARG_NO_MMAP", None),
        ("GGML_SCHED_DEBUG", None),
        ("OMP_WAIT_POLICY", None),
        (
            "LLAMA_ARG_LAZYMODE",
            "build b reads no environment variable LLAMA_ARG_LAZYMODE; "
            "did you mean LLAMA_ARG_LAZY_MODE?",
        ),
        (
            "LLAMA_ARG_LAZY",
            "build b reads no environment variable LLAMA_ARG_LAZY; "
            "did you mean LLAMA_ARG_LAZY_MODE?",
        ),
        ("GGML_QQ", "build b reads no environment variable GGML_QQ"),
    ],
)
def test_a_variable_that_no_program_reads_is_refused(tmp_path, name, reason):
    assert refusal(program(tmp_path), {name: "1"}, tmp_path / "home") == reason


def test_where_no_variable_is_known_none_is_refused(tmp_path):
    silent = program(tmp_path, HELP.replace("LLAMA_", "").replace("GGML_", ""))
    assert refusal(silent, {"LLAMA_ARG_X": "1"}, tmp_path / "home") is None


def test_an_intent_is_resolved_by_asking_the_program(tmp_path):
    path, bare = program(tmp_path), environment_for({}, tmp_path)

    def resolved(intent, program=path):
        arm = Arm.model_validate({"name": "a", "build": "b", "args": ["-c", "512"], **intent})
        return preflight.resolved(arm, BATCHED, program, bare)

    assert resolved({}) == (["-c", "512"], None, [])
    assert resolved({"intent": {"mmap": "off", "lazy": "off"}}) == (
        ["-c", "512", "--no-mmap"],
        None,
        ["lazy: off needs no flag: the build reads nothing lazily"],
    )
    args, reason, _ = resolved({"intent": {"lazy": "on"}})
    assert args == ["-c", "512"]
    assert reason == (
        "build b has no flag for lazy: on in the --help of llama-batched-bench; "
        "leave it out there, or write the build's own flag under for_build"
    )
    assert resolved({"intent": {"lazy": "on"}}, tmp_path / "missing")[1] is not None


def test_only_an_engine_of_llama_cpp_takes_an_intent(tmp_path: Path) -> None:
    kernel = Stream(driver="stream")
    arm = Arm(name="arm", build="b", intent=Intent(lazy="off"))
    assert preflight.resolved(arm, kernel, tmp_path / "stream", {})[1] == (
        "stream takes no intent (lazy: off); use args"
    )
    plain = Arm(name="arm", build="b", args=("--policy", "read"))
    assert preflight.resolved(plain, kernel, tmp_path / "stream", {}) == (
        ["--policy", "read"],
        None,
        [],
    )
