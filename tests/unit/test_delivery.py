import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from coldbench.drivers.registry import driver_for
from coldbench.measure import preflight
from coldbench.measure.delivery import Delivery, Printed, check
from coldbench.measure.journal import PlannedRun
from coldbench.measure.launcher import environment_for, launch
from coldbench.measure.native import launcher_program
from coldbench.records import Io, Memory, Residency
from coldbench.study.plan import Plan
from coldbench.study.specs import Arm
from coldbench.study.treatment import Expect, Expected, within
from tests.unit.driver_outputs import REAL, workload
from tests.unit.fabricated_runs import fabricated_run

MIB = 2**20
TABLE = "per_layer_token_embd.weight"
BATCHED = workload("llama-batched-bench", "-npp", "32", "-ntg", "4", "-npl", "1")
BENCH = workload("llama-bench")
COMMAND = workload("command", program="engine", metrics={"a": {"regex": "(.)"}})
NO_FILES = {"programs": {}, "libraries": {}}
SMOLLM, GEMMA = 94 * MIB, 670 * MIB
LAZY, EAGER = "lazy.stderr", "batched_bench.stderr"


def log(name):
    return (REAL / name).read_text(encoding="utf-8")


def judge(
    args=(),
    stderr="",
    *,
    memory=None,
    model=GEMMA,
    table=510 * MIB,
    expect=None,
    probe=None,
    driven=BATCHED,
    build=NO_FILES,
    **more,
):
    """Judge a run of `args` whose log is `stderr` (a recorded one's name, or text)."""
    run = fabricated_run(
        "a",
        1,
        **{
            "argv": ["engine", "-m", "m.gguf", *args],
            "memory": Memory(**(memory or {})),
            "table_total": table,
            **more,
        },
    )
    text = log(stderr) if stderr.endswith(".stderr") else stderr
    return check(
        Arm(name="a", build="b", expect=expect or Expected()),
        driven,
        run,
        build=build,
        model={"bytes": model},
        measured=Printed("", text),
        probe=None if probe is None else Printed("", log(probe)),
    )


def failed(delivery):
    assert (delivery.reason == "") == all(delivery.delivered.values())
    return [what for what, seen in delivery.delivered.items() if not seen]


def eager(model_args=(), **more):
    return judge(model_args, EAGER, model=SMOLLM, table=None, **more)


def test_a_run_that_is_not_ok_has_no_treatment_to_judge():
    found = judge(["-lzm", "on"], status="failed", reason="exit 1", effective={"threads": 2})
    assert found == Delivery(effective={"threads": 2})


# --- lazy reading -------------------------------------------------------------------------------


def test_lazy_reading_is_seen_in_the_log():
    assert judge(["-lzm", "on"], LAZY).delivered == {"lazy on": True, "madvise": True}
    lost = eager(["-lzm", "on"])
    assert failed(lost) == ["lazy on"]
    assert lost.reason == "lazy on: expected a tensor read lazily, seen no tensor read lazily"


def test_auto_below_its_threshold_is_told():
    lost = eager(["--lazy-mode", "auto"])
    assert failed(lost) == ["lazy auto"]
    assert lost.reason.endswith("(auto leaves tensors up to 4 GiB as off does)")
    assert failed(judge(["-lzm", "auto"], LAZY)) == []


def test_lazy_off_must_leave_the_table_in_memory():
    lost = judge(["-lzm", "off"], LAZY, memory={"peak_rss_bytes": 600 * MIB})
    assert failed(lost) == ["lazy off"]
    assert f"seen {TABLE} read lazily" in lost.reason
    small = judge(["-lzm", "off"], EAGER, memory={"peak_rss_bytes": 173 * MIB})
    assert failed(small) == ["table in memory"]
    assert "above half of the table's 510.0 MiB, seen 173.0 MiB" in small.reason
    assert failed(judge(["-lzm", "off"], EAGER, memory={"peak_rss_bytes": 649 * MIB})) == []
    # where memory may be too small for it, it says nothing
    within_budget = {"peak_rss_bytes": 100 * MIB, "budget_bytes": 100 * MIB}
    assert failed(judge(["-lzm", "off"], EAGER, memory=within_budget)) == []


def test_a_lock_of_the_whole_table_is_no_lazy_reading_whatever_the_log_says():
    args, mode = ["-lzm", "on", "-lm", "mlock"], log(LAZY).replace("= none)", "= mlock)")
    held = {"anon_at_peak_bytes": 160 * MIB}
    whole = judge(args, mode, memory={"peak_locked_bytes": 668 * MIB} | held)
    assert failed(whole) == ["lazy table not locked"]
    assert "less than 415.0 MiB locked: all but the table, seen 668.0 MiB" in whole.reason
    assert failed(judge(args, mode, memory={"peak_locked_bytes": 159 * MIB} | held)) == []


def test_a_silent_log_proves_nothing():
    for args in (["-lzm", "on"], ["-lzm", "off"], ["-lm", "mmap"], ["-ngl", "3"]):
        lost = judge(args, "", table=None)
        assert "a log that does not show the loading of a model" in lost.reason, args
    assert judge([], "") == Delivery()


# --- load modes ---------------------------------------------------------------------------------


def test_a_mapping_is_seen_in_buffer_and_file_memory():
    assert failed(eager(["-lm", "mmap"], memory={"file_at_peak_bytes": 95 * MIB})) == []
    lost = eager(["-lm", "mmap"], memory={"file_at_peak_bytes": 5 * MIB})
    assert failed(lost) == ["mapped memory"]
    assert "file memory of at least 23.0 MiB, seen 5.0 MiB" in lost.reason
    held = judge(["--mmap"], "overridden.stderr", table=None)
    assert failed(held) == ["load mode mmap", "mapped buffer"]


@pytest.mark.parametrize("args", [["-lm", "none"], ["--no-mmap"], ["-mmp", "0"]])
def test_a_copy_in_memory_is_seen_in_buffer_and_anonymous_memory(args):
    memory = {"anon_at_peak_bytes": 110 * MIB}
    assert failed(judge(args, "overridden.stderr", memory=memory, table=None)) == []
    little = judge(args, "overridden.stderr", memory={"anon_at_peak_bytes": MIB}, table=None)
    assert failed(little) == ["memory of its own"]
    mapped = eager(args, memory=memory)
    assert failed(mapped) == ["load mode none", "buffer in memory"]
    assert "seen CPU_Mapped" in mapped.reason


def test_a_lazily_read_table_is_mapped_beside_a_body_in_memory():
    memory = {"anon_at_peak_bytes": 160 * MIB}
    args = ["-lm", "none", "-lzm", "on"]
    assert failed(judge(args, LAZY, memory=memory)) == []


def test_a_lock_is_seen_in_locked_memory_and_not_in_words():
    args = ["-lm", "mmap+mlock"]
    stderr = log(EAGER).replace("= mmap)", "= mmap+mlock)")
    assert failed(judge(args, stderr, memory={"peak_locked_bytes": 92 * MIB}, table=None)) == []
    lost = judge(args, stderr, memory={"peak_locked_bytes": 0}, table=None)
    assert failed(lost) == ["locked memory"]
    assert "locked memory (VmLck) of at least 46.0 MiB, seen 0 bytes" in lost.reason
    warned = judge(args, "mlock_failed.stderr", memory={"peak_locked_bytes": 92 * MIB}, table=None)
    assert failed(warned) == ["locked memory"]


def test_direct_reads_leave_nothing_cached_and_do_not_fall_back():
    stderr = log("overridden.stderr").replace("(load_mode = none)", "(load_mode = dio)")

    def dio(text=stderr, left=0, state="cold"):
        after = Residency(files={"m": left}, table_bytes=None)
        return judge(["-dio"], text, model=SMOLLM, table=None, after=after, state=state)

    assert failed(dio(left=9 * MIB)) == []
    assert failed(dio(left=90 * MIB)) == ["nothing left cached"]
    assert failed(dio(left=90 * MIB, state="warm")) == []
    assert failed(dio(stderr + "read_raw_unsafe: Falling back to buffered IO due to x\n")) == [
        "direct reads"
    ]


# --- placement, threads, advice -----------------------------------------------------------------


def test_layers_are_offloaded_or_the_run_is_not_what_its_arm_says():
    offloaded = log(EAGER) + "load_tensors: offloaded {} layers to GPU\n"
    full, part = offloaded.format("5/5"), offloaded.format("2/5")
    for asked, stderr in (("99", full), ("all", full), ("2", part), ("0", log(EAGER))):
        assert failed(judge(["-ngl", asked], stderr, table=None)) == []
    for asked, stderr in (("99", part), ("3", part), ("2", log(EAGER)), ("0", part)):
        assert len(failed(judge(["-ngl", asked], stderr, table=None))) == 1
    none = judge(["-ngl", "99"], "overridden.stderr", table=None)
    assert none.reason == (
        "offloaded layers: expected 99 layers offloaded (or all), "
        "seen no usable GPU found, the flag is ignored"
    )
    assert judge(["-ngl", "auto"], EAGER).delivered == {}


def test_overridden_tensors_show_only_in_a_deep_log():
    args = ["-ot", r"blk\.0\.ffn=CPU"]
    assert eager(args).delivered == {}
    assert eager(args, probe="overridden.stderr").delivered == {r"-ot blk\.0\.ffn": True}
    assert failed(eager(args, probe="bench.stderr")) == [r"-ot blk\.0\.ffn"]
    other = eager(["-ot", r"blk\.0\.ffn=RPC0,blk\.1=CPU"], probe="overridden.stderr")
    assert other.reason == (
        r"-ot blk\.0\.ffn: expected tensors overridden to RPC0, seen CPU; "
        r"-ot blk\.1: expected tensors overridden to CPU, seen no tensor overridden"
    )


def test_a_pattern_on_a_lazily_read_tensor_is_told():
    deep = log(LAZY) + "0.00.500.000 D set_abort_callback: call\n"
    lost = judge(["-lzm", "on", "-ot", "per_layer=RPC0"], deep)
    assert lost.reason == (
        "-ot per_layer: expected tensors overridden to RPC0, seen no tensor overridden "
        f"({TABLE} is read lazily and stays where it is)"
    )


def test_threads_are_compared_with_what_the_tool_says():
    assert failed(eager(["-t", "2"], effective={"threads": 2})) == []
    lost = eager(["-t", "4"], effective={"threads": 2})
    assert lost.reason == "threads: expected 4, seen 2"
    assert "threads" not in judge(["-t", "4"], "load_tensors: CPU buffer size = 1 MiB").delivered


def test_advice_that_the_kernel_refused_is_told():
    refused = "0.00.1.1 W warning: posix_madvise(.., POSIX_MADV_RANDOM) failed: Invalid argument\n"
    lost = judge(["-lzm", "on"], log(LAZY) + refused * 2)
    assert lost.reason == (
        "madvise: expected advice that the kernel takes, "
        "seen posix_madvise(.., POSIX_MADV_RANDOM) failed: Invalid argument"
    )
    # how the file is read ahead while it loads is no treatment
    other = "warning: posix_fadvise(.., POSIX_FADV_SEQUENTIAL) failed: Invalid argument\n"
    assert failed(judge(["-lzm", "on"], log(LAZY) + other)) == []


def test_a_tool_that_logs_nothing_is_judged_by_its_probe():
    args, row = ["-lm", "mmap"], {"load_mode": "mmap"}
    echo = judge(args, "", driven=BENCH, table=None, effective=row)
    assert failed(echo) == ["mapped buffer"]
    proof = judge(args, "", driven=BENCH, table=None, effective=row, probe="bench.stderr")
    assert proof.delivered["mapped buffer"]
    assert failed(proof) == []
    assert proof.effective["buffers"] == {"CPU_Mapped": 92.1}
    assert (echo.effective, proof.effective["lazy"]) == (row, "off")


def test_a_command_of_the_study_s_own_is_judged_by_its_expectations_alone():
    assert judge(["-lzm", "on"], driven=COMMAND) == Delivery()
    wanted = Expected(log=("started",))
    assert judge(driven=COMMAND, expect=wanted, stderr="").reason == (
        "log started: expected a line that matches, seen none"
    )


# --- declared expectations ----------------------------------------------------------------------


def test_declared_expectations_are_judged_one_by_one():
    wanted = Expected(
        log=(r"lazy read enabled$", "^no such line"),
        no_log=("Falling back", "n_ctx +="),
        effective={"lazy": "on", "load_mode": "mmap", "mlock": "on"},
        buffers=("CPU_Mapped", "RPC0"),
        bounds={"major_faults": "< 3", "read_bytes": ">= 642MiB", "table_residency": "< 10%"},
    )
    found = judge([], LAZY, expect=wanted, after=Residency(table_bytes=MIB))
    assert failed(found) == [
        "log ^no such line",
        "no log n_ctx +=",
        "effective load_mode",
        "effective mlock",
        "buffer RPC0",
        "bound major_faults",
    ]
    for words in (
        "no log n_ctx +=: expected no line that matches, seen n_ctx",
        "effective load_mode: expected mmap, seen none",
        "effective mlock: expected on, seen n/a",
        "buffer RPC0: expected RPC0, seen CPU, CPU_Mapped",
        "bound major_faults: expected < 3, seen 3",
    ):
        assert words in found.reason


def test_a_remote_buffer_is_named_without_its_address():
    stderr = "load_tensors: RPC0[127.0.0.1:50052] model buffer size = 7.00 MiB\n"
    assert failed(judge([], stderr, expect=Expected(buffers=("RPC0",)))) == []


def test_expectations_of_a_state_hold_in_it_alone():
    wanted = Expected.model_validate({"cold": {"bounds": {"major_faults": "< 500"}}})
    faults = Io(major_faults=9864)
    cold = judge([], LAZY, expect=wanted, io=faults)
    assert cold.reason == "bound major_faults: expected < 500, seen 9,864"
    assert failed(judge([], LAZY, expect=wanted, io=faults, state="warm")) == []


def test_a_counter_that_could_not_be_had_keeps_no_bound():
    wanted = Expected(bounds={"major_faults": "< 500"})
    lost = judge([], LAZY, expect=wanted, io=Io())
    assert lost.reason == "bound major_faults: expected < 500, seen n/a"


@pytest.mark.parametrize(
    ("quantity", "bound", "value", "kept"),
    [
        ("major_faults", "< 100", 100, False),
        ("major_faults", "<=100", 100, True),
        ("table_residency", "> 95%", 0.96, True),
        ("table_residency", "< 0.5%", 0.004, True),
        ("anon_at_peak_bytes", ">= 1.5MiB", 1.5 * MIB, True),
        ("read_bytes", "< 1KiB", 1024, False),
    ],
)
def test_bounds_are_kept_or_not(quantity, bound, value, kept):
    assert within(quantity, bound, value) is kept


@pytest.mark.parametrize(
    "bounds",
    [
        {"major_faults": "100"},
        {"major_faults": "< 10%"},
        {"table_residency": "< 0.1"},
        {"read_bytes": "< 100"},
        {"read_bytes": "== 1GiB"},
        {"faults": "< 1"},
    ],
)
def test_a_bound_that_is_none_is_refused(bounds):
    with pytest.raises(ValidationError):
        Expected(bounds=bounds)


def test_expectations_of_levels_add_up_and_a_build_s_own_come_last():
    level = Expect.model_validate(
        {
            "log": "one",
            "bounds": {"major_faults": "< 9"},
            "for_build": {"new": {"log": ["two"], "cold": {"buffers": "CPU"}}},
        }
    )
    assert level.on("old") == Expected(log=("one",), bounds={"major_faults": "< 9"})
    other = Expected.model_validate(
        {"bounds": {"major_faults": "> 9"}, "cold": {"buffers": "RPC0"}}
    )
    both = level.on("new").merged(other)
    assert both.log == ("one", "two")
    assert both.bounds == {"major_faults": "> 9"}
    assert both.in_state("cold").buffers == ("CPU", "RPC0")
    assert both.in_state("warm").buffers == ()


STUDY = """\
models: {toy: {source: {path: toy.gguf}}}
builds: {new: {source: {binaries: new}}, old: {source: {binaries: old}}}
workloads: {run: {driver: llama-batched-bench, args: [-npp, 512, -ntg, 128, -npl, 1]}}
factors:
  lazy:
    on:
      intent: {lazy: on}
      expect: {effective: {lazy: on}, for_build: {new: {bounds: {major_faults: "< 500"}}}}
    off: {intent: {lazy: off}, for_build: {old: [--eager]}}
  mode:
    none: {intent: {load_mode: none}}
arms: {matrix: {build: [new, old], lazy: [on, off], mode: none}}
blocks: {cold: 3}
"""


def test_intents_and_expectations_of_the_levels_come_together_in_an_arm(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    arms = {arm.name: arm for arm in Plan(path).arms}
    assert arms["new-lazy-on-mode-none"].intent.given == {"lazy": "on", "load_mode": "none"}
    assert arms["new-lazy-on-mode-none"].expect.bounds == {"major_faults": "< 500"}
    assert arms["old-lazy-on-mode-none"].expect == Expected(effective={"lazy": "on"})
    # what a level gives a build of its own replaces all that it adds otherwise
    assert arms["new-lazy-off-mode-none"].intent.given == {"lazy": "off", "load_mode": "none"}
    assert arms["old-lazy-off-mode-none"].intent.given == {"load_mode": "none"}
    assert arms["old-lazy-off-mode-none"].args == ("--eager",)
    assert arms["old-lazy-off-mode-none"].expect == Expected()
    twins = [arm for arm in arms.values() if arm.twin_of is not None]
    assert all(arm.expect == arms[arm.twin_of].expect for arm in twins)


# --- loaded files -------------------------------------------------------------------------------


def shared_build(folder: Path, word: str) -> dict:
    """Compile a program and the library that holds its code, as a build's record."""
    folder.mkdir()
    (folder / "lib.c").write_text(f'const char *word(void) {{ return "{word}"; }}\n')
    (folder / "main.c").write_text(
        "#include <stdio.h>\n#include <unistd.h>\nconst char *word(void);\n"
        "int main(void) { puts(word()); fflush(stdout); usleep(300000); return 0; }\n"
    )
    for command in (
        ["cc", "-shared", "-fPIC", "-o", "libengine.so", "lib.c"],
        [
            "cc",
            "-o",
            "engine",
            "main.c",
            "-L.",
            "-lengine",
            "-Wl,--enable-new-dtags,-rpath,$ORIGIN",
        ],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=60)
    return {
        "programs": {"engine": {"path": str(folder / "engine"), "sha256": ""}},
        "libraries": {"libengine.so": {"path": str(folder / "libengine.so"), "sha256": ""}},
    }


def test_a_library_path_that_loads_the_other_build_is_told(tmp_path):
    builds = {word: shared_build(tmp_path / word, word) for word in ("mine", "other")}
    launcher = launcher_program(tmp_path / "cache")

    def run(environment):
        launched = launch(
            launcher,
            [builds["mine"]["programs"]["engine"]["path"]],
            environment_for(environment, tmp_path / "home"),
            stdout=tmp_path / "out",
            stderr=tmp_path / "err",
            time_limit_s=30,
            output_limit_bytes=MIB,
        )
        loaded = list(launched.loaded or ())
        argv = [builds["mine"]["programs"]["engine"]["path"]]
        found = judge(argv=argv, loaded=loaded, build=builds["mine"], driven=COMMAND)
        return (tmp_path / "out").read_text().strip(), found

    assert run({}) == ("mine", Delivery({"loaded files": True}))
    word, delivery = run({"LD_LIBRARY_PATH": str(tmp_path / "other")})
    assert word == "other"
    assert delivery.reason == (
        f"loaded files: expected {tmp_path}/mine/libengine.so, seen {tmp_path}/other/libengine.so"
    )


def test_the_program_itself_must_be_among_the_files_unless_it_is_a_script(tmp_path):
    build = shared_build(tmp_path / "mine", "mine")
    engine = build["programs"]["engine"]["path"]
    shell = judge(argv=[engine], loaded=["/bin/dash"], build=build, driven=COMMAND)
    assert shell.reason == f"loaded files: expected {engine}, seen /bin/dash"
    assert judge(argv=[engine], loaded=None, build=build, driven=COMMAND) == Delivery()
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    own = {"programs": {"script": {"path": str(script), "sha256": ""}}, "libraries": {}}
    found = judge(argv=[str(script)], loaded=["/bin/dash"], build=own, driven=COMMAND)
    assert failed(found) == []


# --- before a run -------------------------------------------------------------------------------

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


# --- probes -------------------------------------------------------------------------------------


def probe(driven, args):
    return driver_for(driven).probe(driven, "/p", "/m", args)


def test_only_overrides_need_a_probe_of_tools_with_log_levels():
    assert probe(BATCHED, ["-lzm", "on"]) is None
    shown = probe(BATCHED, ["-ot", "x=CPU"])
    assert shown[-2:] == ["-lv", "5"]
    assert shown[shown.index("-npp") + 1] == shown[shown.index("-ntg") + 1] == "1"
    deep = BATCHED.model_copy(update={"args": (*BATCHED.args, "-lv", "5")})
    assert probe(deep, ["-ot", "x=CPU"]) is None
    text = workload("llama-completion", prompt="a", tokens=64)
    assert probe(text, []) is None
    shown = probe(text, ["-ot", "x=CPU"])
    assert shown[shown.index("-n") + 1] == "1"
    assert shown[-2:] == ["-lv", "5"]
    assert probe(COMMAND, ["-ot", "x=CPU"]) is None


def test_llama_bench_is_silent_when_measured_and_verbose_when_probed():
    driven = workload("llama-bench", "-p", "512", "-r", "3", "-d", "9", "-t", "2", "--no-warmup")
    assert "-v" not in driver_for(driven).argv(driven, "/p", "/m", [])
    assert probe(driven, ["-lm", "none"]) == [
        *("/p", "-m", "/m", "-o", "jsonl", "-r", "1", "-p", "1", "-n", "1"),
        *("-t", "2", "--no-warmup", "-lm", "none", "-v"),
    ]
