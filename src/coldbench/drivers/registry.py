"""Which driver serves which workload."""

from collections.abc import Mapping, Sequence
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.base import RPC, RPC_SERVER, Driver, Mark
from coldbench.drivers.batched_bench import BatchedBenchDriver
from coldbench.drivers.bench import BenchDriver
from coldbench.drivers.bits import check_groups
from coldbench.drivers.command import CommandDriver
from coldbench.drivers.completion import CompletionDriver
from coldbench.drivers.gemma_cpp import MARKS, GemmaCppDriver
from coldbench.drivers.kernel import KernelDriver
from coldbench.drivers.logits import LogitsDriver
from coldbench.study.plan import Plan
from coldbench.study.workloads import GemmaCpp, Workload

DRIVERS: dict[str, Driver[Any]] = {
    "llama-batched-bench": BatchedBenchDriver(),
    "llama-bench": BenchDriver(),
    "llama-completion": CompletionDriver(),
    "llama-results": LogitsDriver(),
    "command": CommandDriver(),
    "gemma-cpp": GemmaCppDriver(),
    "gather": KernelDriver(),
    "stream": KernelDriver(),
}
"""By the name under `driver` in the study file."""

_EVERYTHING = "all"
"""CMake's target of that name."""

_RPC_SWITCH = "GGML_RPC"
_ON = frozenset({"ON", "1", "TRUE", "YES", "Y"})


def driver_for(workload: Workload) -> Driver[Any]:
    """Return the driver that `workload` names."""
    return DRIVERS[workload.driver]


def marks_of(workload: Workload) -> Mapping[str, Mark]:
    """Return what is timed from outside in an output, by the figure that it gives."""
    return MARKS if isinstance(workload, GemmaCpp) else {}


def check_study(plan: Plan) -> None:
    """Refuse a study with a command line that its driver cannot measure.

    Also one whose builds lack a program that is asked of them, and one whose identity check
    compares arms of unlike bits (see `bits`). All scales are checked. Raises ColdbenchError naming
    file, line, workload, arm and flag.
    """
    for name, workload in plan.file.workloads.items():
        for arm in plan.arms:
            try:
                driver_for(workload).check(workload, arm.args)
                _check_rpc(workload, arm.args)
            except ColdbenchError as error:
                raise plan.faults.fail(
                    ("workloads", name), f"with arm {arm.name}: {error}"
                ) from None
            if name in plan.workloads or arm.name not in plan.without_identity:
                _check_programs(plan, name, workload, arm.build)
    check_groups(plan)
    for other in plan.others:
        check_study(other)


def _check_rpc(workload: Workload, arm_args: Sequence[str]) -> None:
    if not workload.llama_cpp or getattr(workload, "rpc", None) is not None:
        return
    if any(RPC in arg for arg in (*workload.args, *arm_args)):
        raise ColdbenchError(f"args: {RPC} needs the workload's key rpc, which starts the server")


def _check_programs(plan: Plan, name: str, workload: Workload, build_name: str) -> None:
    """Refuse a build that is compiled without a program which a workload's driver runs."""
    build = plan.builds[build_name]
    if not build.targets or _EVERYTHING in build.targets:
        return
    needed = [] if workload.program else [driver_for(workload).program(workload)]
    if getattr(workload, "rpc", None) is not None:
        needed.append(RPC_SERVER)
        if (build.cmake or {}).get(_RPC_SWITCH, "OFF").upper() not in _ON:
            raise plan.faults.fail(
                ("builds", build_name),
                f"needs cmake {{{_RPC_SWITCH}: ON}}: workload {name} has rpc",
            )
    for program in needed:
        if program not in build.targets:
            raise plan.faults.fail(
                ("builds", build_name),
                f"needs {program} among its targets: workload {name} runs it",
            )
