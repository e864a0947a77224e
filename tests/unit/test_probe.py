"""The short run that shows what a measured one does not log."""

from coldbench.drivers.registry import driver_for
from tests.unit.driver_outputs import workload

from .test_delivery import BATCHED, COMMAND


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
