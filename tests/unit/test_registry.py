"""What a study asks of its drivers is told before anything is built or measured."""

from pathlib import Path

import pytest

from .study_checks import told

STUDY = """\
scale: here
scales:
  here: {models: {toy: {source: {path: toy.gguf}}}}
  there:
    models: {toy: {source: {path: there.gguf}}}
    workloads: {more: {driver: llama-bench, args: [-p, 1]}}
builds:
  made:
    source: {folder: engine}
    cmake: {GGML_RPC: true}
    targets: [llama-bench, llama-batched-bench, llama-completion, ggml-rpc-server]
  bare:
    source: {folder: engine}
    targets: [llama-batched-bench, llama-bench, llama-completion]
  ready: {source: {binaries: engine}}
workloads:
  run: {driver: llama-batched-bench, args: [-npp, 64, -ntg, 8, -npl, 1]}
  text: {driver: llama-completion, prompt: one}
arms:
  - {name: a, build: made}
  - {name: b, build: bare}
  - {name: c, build: ready}
blocks: {cold: 1}
identity: {workload: text, mutant: two}
"""


RPC = ("-npl, 1]}", "-npl, 1], rpc: {threads: 1}}")
NO_BARE = ("{name: b, build: bare}", "{name: b, build: made, args: [-t, 1]}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], ""),
        ([RPC, NO_BARE], ""),
        (
            [("bench, llama-completion]", "bench]")],
            "12: builds.bare: needs llama-completion among its targets: workload text runs it",
        ),
        ([("bench, llama-completion]", "bench]"), ("two}", "two, without: b}")], ""),
        ([("[llama-batched-bench, llama-bench, llama-completion]", "[all]")], ""),
        (
            [("[llama-bench, ", "["), NO_BARE],
            "8: builds.made: needs llama-bench among its targets: workload more runs it "
            "(at the scale there)",
        ),
        ([RPC], "12: builds.bare: needs cmake {GGML_RPC: ON}: workload run has rpc"),
        (
            [RPC, NO_BARE, (", ggml-rpc-server", "")],
            "8: builds.made: needs ggml-rpc-server among its targets: workload run runs it",
        ),
        (
            [("{name: c, build: ready}", '{name: c, build: ready, args: [-ot, "x=RPC0[{rpc}]"]}')],
            "17: workloads.run: with arm c: args: {rpc} needs the workload's key rpc, which starts "
            "the server",
        ),
        (
            [("{name: c, build: ready}", "{name: c, build: ready, args: [-m, other.gguf]}")],
            "17: workloads.run: with arm c: arm args: -m: the driver sets this flag itself; "
            "remove it",
        ),
    ],
)
def test_what_no_driver_can_run_is_told_with_its_line(
    tmp_path: Path, changes: list[tuple[str, str]], said: str
) -> None:
    assert told(tmp_path, STUDY, *changes).removeprefix(f"{tmp_path}/s.yaml:") == said
