"""Any program: its figures are found by regular expressions or JSON paths of the study file."""

import re
from collections.abc import Sequence
from typing import Any

import jsonpath

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.base import Output, Result, UnusableError, failure, figure
from coldbench.drivers.documents import json_documents
from coldbench.drivers.text import cut_text
from coldbench.study.workloads import Command, Metric

_MODEL = "{model}"


class CommandDriver:
    """Drives what a study names."""

    def program(self, workload: Command) -> str:
        """Return the program's file name."""
        return workload.program

    def check(self, workload: Command, arm_args: Sequence[str] = ()) -> None:
        """Raise ColdbenchError where a metric's JSON path is none."""
        for name, metric in workload.metrics.items():
            if metric.json_path is not None:
                try:
                    jsonpath.compile(metric.json_path)
                except jsonpath.JSONPathError as error:
                    raise ColdbenchError(
                        f"metrics.{name}.json_path: {metric.json_path!r} is not a JSON path: "
                        f"{' '.join(str(error).split())}"
                    ) from None

    def argv(
        self, workload: Command, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str]:
        """Return the command line; of all braces only {model} is replaced, by the model's path."""
        self.check(workload, arm_args)
        return [program, *(arg.replace(_MODEL, model) for arg in (*workload.args, *arm_args))]

    def probe(
        self, workload: Command, program: str, model: str, arm_args: Sequence[str]
    ) -> list[str] | None:
        """Return None: what a program logs, and where, only the study knows."""
        return None

    def repetitions(self, workload: Command) -> int:
        """Return 1: what happens inside is the program's own affair."""
        return 1

    def read(self, workload: Command, output: Output) -> Result:
        """Read an output: every metric must be there exactly once."""
        if reason := failure(workload, output):
            return Result("failed", reason)
        streams = {"stdout": output.stdout.decode("utf-8", "replace"), "stderr": output.stderr}
        found = {
            name: _values(metric, streams[metric.stream])
            for name, metric in workload.metrics.items()
        }
        try:
            if not any(found.values()):
                raise UnusableError("void", f"no result: exit 0 without {', '.join(found)}")
            metrics = {name: _one(name, values) for name, values in found.items()}
            text = None if workload.text is None else cut_text(workload.text, output.stdout)
        except UnusableError as unusable:
            return Result(unusable.status, unusable.reason)
        return Result("ok", metrics=metrics, text=text)


def _values(metric: Metric, stream: str) -> list[Any]:
    if metric.regex is not None:
        return [_number(text) for text in re.findall(metric.regex, stream, re.MULTILINE)]
    documents, _ = json_documents(stream)
    if not documents or metric.json_path is None:
        return []
    try:
        return list(jsonpath.findall(metric.json_path, documents[0]))
    except jsonpath.JSONPathError:
        return []


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _one(name: str, values: list[Any]) -> float:
    if not values:
        raise UnusableError("invalid", f"no value for {name}")
    if len(values) > 1:
        raise UnusableError("invalid", f"{len(values)} values for {name} where one is expected")
    return figure(values[0], name)
