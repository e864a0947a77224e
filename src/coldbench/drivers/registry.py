"""Which driver serves which workload."""

from collections.abc import Mapping
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.base import Driver, Mark
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


def driver_for(workload: Workload) -> Driver[Any]:
    """Return the driver that `workload` names."""
    return DRIVERS[workload.driver]


def marks_of(workload: Workload) -> Mapping[str, Mark]:
    """Return what is timed from outside in an output, by the figure that it gives."""
    return MARKS if isinstance(workload, GemmaCpp) else {}


def check_study(plan: Plan) -> None:
    """Refuse a study with a command line that its driver cannot measure.

    Also one whose identity check compares arms of unlike bits (see `bits`). Raises ColdbenchError
    naming file, workload, arm and flag.
    """
    for name, workload in plan.file.workloads.items():
        for arm in plan.arms:
            try:
                driver_for(workload).check(workload, arm.args)
            except ColdbenchError as error:
                raise ColdbenchError(
                    f"{plan.path}: workload {name} with arm {arm.name}: {error}"
                ) from None
    check_groups(plan)
