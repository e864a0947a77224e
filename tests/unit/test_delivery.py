import subprocess
from pathlib import Path

import pytest

from coldbench.measure.delivery import ANY, Delivery, Printed, check
from coldbench.measure.launcher import environment_for, launch
from coldbench.measure.native import launcher_program
from coldbench.records import Memory, Residency
from coldbench.study.specs import Arm
from coldbench.study.treatment import Expected
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
    # an arm that is about this very lock says so, and its residency tells
    declared = Expected(effective={"lazy": ANY})
    locked = {"peak_locked_bytes": 668 * MIB}
    assert failed(judge(args, mode, expect=declared, memory=locked | held)) == []


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


def test_an_override_names_the_servers_buffers_without_a_port():
    deep = log("overridden.stderr").replace("overridden to CPU", "overridden to RPC0[127.0.0.1:9]")
    args = ["-ot", r"blk\.0\.ffn=RPC0[{rpc}]"]
    assert judge(args, deep, table=None).delivered[r"-ot blk\.0\.ffn"] is True
    assert eager(args, probe="overridden.stderr").delivered == {r"-ot blk\.0\.ffn": False}


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
