import pytest

from coldbench.drivers.engine_log import EngineLog, read_log
from tests.unit.driver_outputs import REAL

LOADING = "load_tensors: loading model tensors, this can take a while... "


def real(name):
    return (REAL / name).read_text(encoding="utf-8")


def test_a_quiet_log_says_nothing():
    assert read_log("") == ({}, [])
    assert read_log("warning: something else\n") == ({}, [])


def test_overridden_tensors_and_a_missing_gpu_are_seen():
    effective, notes = read_log(real("overridden.stderr"))
    assert effective == {
        "load_mode": "none",
        "lazy": "off",
        "buffers": {"CPU": 92.1},
        "overrides": 4,
    }
    assert notes == ["no usable GPU found: the number of offloaded layers is ignored"]


@pytest.mark.parametrize(("limit", "shown"), [(65536, " (limit 64 KiB)"), (None, "")])
def test_a_lock_that_failed_is_not_in_effect(limit, shown):
    effective, notes = read_log(real("mlock_failed.stderr"), limit)
    assert effective["load_mode"] == "mmap+mlock"
    assert effective["mlock"] is False
    assert notes == [f"mlock not in effect{shown}"]


def test_a_lock_without_a_warning_is_in_effect():
    effective, notes = read_log(LOADING + "(load_mode = mlock)\n")
    assert effective["mlock"] is True
    assert notes == []


def test_a_table_read_lazily_beside_a_body_in_memory_is_seen():
    effective, notes = read_log(real("lazy.stderr"))
    assert effective == {
        "load_mode": "none",
        "lazy": ["per_layer_token_embd.weight"],
        "buffers": {"CPU": 159.51, "CPU_Mapped": 510.0},
    }
    assert notes == []


@pytest.mark.parametrize("prefix", ["", "0.00.073.646 I ", "I "])
def test_lazily_read_tensors_are_named(prefix):
    lines = [
        LOADING + "(load_mode = none)",
        "add: tensor per_layer_token_embd.weight (size = 511 MiB) lazy read enabled",
        "load_tensors: enabling prefetch for 'per_layer_token_embd.weight'",
        "load_tensors:          CPU model buffer size =   139.50 MiB",
        "load_tensors:   CPU_Mapped model buffer size =   511.00 MiB",
        "load_tensors:   CPU_Mapped model buffer size =     1.25 MiB",
    ]
    effective, notes = read_log("\n".join(prefix + line for line in lines))
    assert effective == {
        "load_mode": "none",
        "lazy": ["per_layer_token_embd.weight"],
        "buffers": {"CPU": 139.5, "CPU_Mapped": 512.25},
    }
    assert notes == []


def test_buffers_of_an_rpc_server_have_one_name_whatever_its_port():
    effective, _ = read_log(
        LOADING + "(load_mode = mmap)\n"
        "load_tensors: RPC0[127.0.0.1:40185] model buffer size =   120.50 MiB\n"
        "load_tensors: RPC0[::1:35811] model buffer size =     1.25 MiB\n"
        "load_tensors: CUDA0[fast] model buffer size =     2.00 MiB\n"
    )
    assert effective["buffers"] == {"RPC0": 121.75, "CUDA0[fast]": 2.0}
    moved = "tensor blk.0.ffn_up.weight (9 MiB q8_0) buffer type overridden to RPC0[127.0.0.1:9]\n"
    log = EngineLog(LOADING + "(load_mode = mmap)\n" + moved)
    assert log.overridden == {"blk.0.ffn_up.weight": "RPC0"}


def test_the_mode_without_mmap_still_shows_a_table_that_another_option_keeps_lazy():
    table = "add: tensor per_layer_token_embd.weight (size = 9 MiB) lazy read enabled\n"
    buffers = "load_tensors:          CPU model buffer size =   139.50 MiB\n"
    asked = LOADING + "(load_mode = none)\n"
    lazy, _ = read_log(asked + table + buffers)
    eager, _ = read_log(asked + buffers)
    assert lazy["load_mode"] == eager["load_mode"] == "none"
    assert lazy["lazy"] != eager["lazy"] == "off"


def test_the_last_load_of_a_model_counts():
    first = LOADING + "(load_mode = mmap)\nload_tensors: CPU model buffer size = 0.00 MiB\n"
    last = LOADING + "(load_mode = dio)\nload_tensors: RPC0[127.0.0.1:50052] model buffer size ="
    effective, _ = read_log(first + last + " 7.00 MiB\nload_tensors: offloaded 2/5 layers to GPU\n")
    assert effective == {
        "load_mode": "dio",
        "direct_io": True,
        "lazy": "off",
        "buffers": {"RPC0": 7.0},
        "offloaded": "2/5",
    }


@pytest.mark.parametrize(
    ("old", "mode"),
    [
        ("(mmap = true)", "mmap"),
        ("(mmap = false)", "none"),
        ("(mmap = false, direct_io = true)", "dio"),
        ("(mmap = true, direct_io = false)", "mmap"),
        ("", None),
    ],
)
def test_older_spellings_of_the_load_mode_are_read(old, mode):
    effective, _ = read_log(f"llm_load_tensors: {LOADING.removeprefix('load_tensors: ')}{old}\n")
    assert effective.get("load_mode") == mode


@pytest.mark.parametrize(
    "warning",
    [
        "Failed to open file 'm' with error: Invalid argument. Falling back to buffered I/Oload:",
        "read_raw_unsafe: Falling back to buffered IO due to Invalid argument",
    ],
)
def test_direct_io_that_fell_back_is_not_in_effect(warning):
    effective, notes = read_log(f"{LOADING}(load_mode = dio)\n{warning}\n")
    assert effective["direct_io"] is False
    assert notes == ["direct I/O not in effect: the engine fell back to buffered reads"]


def test_advice_that_the_kernel_refused_is_noted_once():
    line = "0.00.1.1 W warning: posix_madvise(.., POSIX_MADV_RANDOM) failed: Invalid argument\n"
    _, notes = read_log(line * 3 + "llama_prefetch: madvise(MADV_WILLNEED) failed: x\n")
    assert notes == [
        "posix_madvise(.., POSIX_MADV_RANDOM) failed: Invalid argument",
        "madvise(MADV_WILLNEED) failed: x",
    ]


def test_threads_are_read():
    assert read_log(real("completion.stderr"))[0]["threads"] == 2
    assert read_log(real("bench.stderr"))[0]["threads"] == 2


def test_overridden_tensors_are_kept_with_their_buffers():
    log = EngineLog(real("overridden.stderr"))
    assert log.overridden == {
        f"blk.0.ffn_{name}.weight": "CPU" for name in ("norm", "gate", "down", "up")
    }
    assert log.no_gpu


@pytest.mark.parametrize(
    ("name", "deep"),
    [("overridden.stderr", True), ("bench.stderr", True), ("lazy.stderr", False)],
)
def test_a_log_of_the_level_that_shows_overrides_is_told_apart(name, deep):
    assert EngineLog(real(name)).deep is deep
    assert EngineLog(real(name)).told


def test_only_refused_advice_on_memory_is_a_treatment_that_failed():
    log = EngineLog(
        "warning: posix_fadvise(.., POSIX_FADV_SEQUENTIAL) failed: x\n"
        "llama_prefetch: madvise(MADV_WILLNEED) failed: Invalid argument\n"
    )
    assert [*log.refused_advice] == ["madvise(MADV_WILLNEED) failed: Invalid argument"]
    assert len(log.notes(None)) == 2
    assert not log.told
