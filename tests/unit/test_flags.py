import pytest

from coldbench.drivers.flags import (
    OBSERVABLE_FLAGS,
    check_tensor_overrides,
    known_flags,
    unknown_flags,
)
from coldbench.drivers.registry import driver_for
from tests.unit.driver_outputs import REAL, workload

BATCHED = known_flags((REAL / "help_llama-batched-bench.txt").read_text(encoding="utf-8"))
BENCH = known_flags((REAL / "help_llama-bench.txt").read_text(encoding="utf-8"))
TENSORS = ["token_embd.weight", "per_layer_token_embd.weight", "blk.0.ffn_up.weight"]


@pytest.mark.parametrize("known", [BATCHED, BENCH], ids=["batched-bench", "bench"])
def test_every_spelling_in_a_real_help_is_known(known):
    for flag in ("-m", "--model", "-lzm", "--lazy-mode", "-ot", "--override-tensor", "-ngl", "-h"):
        assert flag in known
    for flag in ("--no-mmap", "--mlock", "-r0", "-", "--example"):
        assert flag not in known


def test_the_help_tells_which_flags_need_a_value():
    for flag in ("-npp", "--lazy-mode", "-c", "--output-format", "-ot"):
        assert BATCHED[flag], flag
    for flag in ("-pps", "--repack", "-v", "-fa"):
        assert not BATCHED[flag], flag
    assert BENCH["-pg"]
    assert BENCH["-ot"]
    assert not BENCH["--no-warmup"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "error: invalid argument: --help",
        "usage: tool [options]\n  -h, --help   show this help\n  -x, --extra N   more",
        "  --model is not mentioned\n",
    ],
)
def test_another_help_tells_nothing(text):
    assert known_flags(text) == {}
    assert unknown_flags(["--anything", "-x"], known_flags(text)) == []


def test_a_flag_that_this_build_does_not_know_is_found():
    assert unknown_flags(["-m", "m.gguf", "--no-mmap", "-lzm", "off"], BATCHED) == ["--no-mmap"]
    assert unknown_flags(["--lazy_mode", "on", "--old", "x", "--old"], BATCHED) == ["--old"]


def test_values_and_negative_numbers_are_no_flags():
    argv = ["-p", "--no-mmap", "-ngl", "-1", "--prio", "-1", "-fa", "-5", "-c", "256", "plain"]
    assert unknown_flags(argv, BATCHED) == []
    assert unknown_flags(["-pps", "--no-mmap"], BATCHED) == ["--no-mmap"]


@pytest.mark.parametrize(
    ("known", "work"),
    [
        (BATCHED, workload("llama-batched-bench", "-npp", "1", "-ntg", "1", "-npl", "1")),
        (BENCH, workload("llama-bench")),
    ],
)
def test_a_build_of_today_knows_all_flags_of_the_driver(known, work):
    argv = driver_for(work).argv(work, "p", "m", ["-lzm", "on", "-ot", "x=CPU"])
    assert unknown_flags(argv[1:], known) == []


def test_a_pattern_that_matches_no_tensor_is_an_error():
    errors, notes = check_tensor_overrides(["-ot", "no_such_tensor=CPU"], TENSORS)
    assert errors == ["pattern no_such_tensor matches 0 of 3 tensors"]
    assert notes == []


def test_the_input_table_is_on_the_cpu_anyway():
    errors, notes = check_tensor_overrides(["-ot", "per_layer_token_embd=CPU"], TENSORS)
    assert errors == []
    assert notes == ["-ot per_layer_token_embd=CPU equals the default placement"]


def test_a_layer_is_on_the_cpu_by_default_only_if_nothing_is_offloaded():
    args = ["--override-tensor", "ffn=CPU"]
    assert check_tensor_overrides(args, TENSORS) == ([], [])
    assert check_tensor_overrides(["-ngl", "99", *args], TENSORS) == ([], [])
    _, notes = check_tensor_overrides(["-ngl", "0", *args], TENSORS)
    assert notes == ["-ot ffn=CPU equals the default placement"]
    assert check_tensor_overrides(["-ngl", "0", "-ot", "ffn=RPC0"], TENSORS) == ([], [])


def test_a_lazily_read_tensor_cannot_be_moved():
    args = ["-lzm", "on", "-ot", "per_layer_token_embd=RPC0"]
    errors, notes = check_tensor_overrides(args, TENSORS)
    assert errors == []
    assert "stays where it is" in notes[0]


def test_a_broken_pattern_is_an_error_with_its_position():
    errors, _ = check_tensor_overrides(["-ot", r"blk\.(0=CPU"], TENSORS)
    assert len(errors) == 1
    assert "not a regular expression" in errors[0]
    assert "at position 5" in errors[0]


@pytest.mark.parametrize("separator", [",", ";"])
def test_each_of_several_overrides_is_checked(separator):
    value = separator.join(["ffn=RPC0", "nothing=CPU", "token_embd"])
    errors, _ = check_tensor_overrides(["-ot", value], TENSORS)
    assert errors == [
        "pattern nothing matches 0 of 3 tensors",
        "-ot token_embd: needs the form PATTERN=BUFFER",
    ]


def test_without_overrides_there_is_nothing_to_say():
    assert check_tensor_overrides(["-lzm", "on", "-c", "256"], TENSORS) == ([], [])


def test_the_effect_of_lazy_and_load_mode_is_observable_and_that_of_batch_size_is_not():
    assert {"-lzm", "--lazy-mode", "-lm", "--load-mode", "-ngl", "--no-mmap"} <= OBSERVABLE_FLAGS
    assert OBSERVABLE_FLAGS.isdisjoint({"-ub", "-b", "-c", "-ctk", "--mlock"})
