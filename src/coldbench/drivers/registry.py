"""Which driver serves which workload."""

from typing import Any

from coldbench.drivers.base import Driver
from coldbench.drivers.batched_bench import BatchedBenchDriver
from coldbench.drivers.bench import BenchDriver
from coldbench.drivers.command import CommandDriver
from coldbench.drivers.completion import CompletionDriver
from coldbench.study.schema import Workload

DRIVERS: dict[str, Driver[Any]] = {
    "llama-batched-bench": BatchedBenchDriver(),
    "llama-bench": BenchDriver(),
    "llama-completion": CompletionDriver(),
    "command": CommandDriver(),
}
"""By the name under `driver` in the study file."""


def driver_for(workload: Workload) -> Driver[Any]:
    """Return the driver that `workload` names."""
    return DRIVERS[workload.driver]
