"""Feeds of workloads: prepared from the study's words, read back, checked before measuring."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import read_json
from coldbench.common.folders import expanded
from coldbench.common.hashing import file_sha256
from coldbench.sources.traces.feed import Record, prepare_trace
from coldbench.sources.traces.layers import prepare_layers
from coldbench.sources.traces.rows import Trace as Rows
from coldbench.sources.traces.rows import make_trace
from coldbench.study.specs import FeedSpec
from coldbench.study.workloads import RecordedTokens, TextTokens, Trace, ZipfTokens

RECORD_KEYS = ("path", "sha256", "content")
"""What a measurement needs of a record."""

TOKENIZER = "llama-tokenize"


def prepare_feed(
    spec: FeedSpec, model: Record, builds: Mapping[str, Record], cache: Path
) -> Record:
    """Return the record of what a workload is fed with a model, made now or found in the cache.

    `model` and `builds` are the records of those it needs. Raises ColdbenchError as
    `prepare_trace` and `prepare_layers`, and where a build has no tokenizer.
    """
    if spec.trace is None:
        return prepare_layers(model, cache)
    return prepare_trace(model, _stream(spec.trace, builds), cache)


def trace_of(spec: FeedSpec, model: Record, builds: Mapping[str, Record]) -> Rows:
    """Return the trace itself that a workload is fed, from the records of what it needs."""
    assert spec.trace is not None
    table = model.get("table")
    tensor = None if table is None else table["tensor"]
    return make_trace(Path(model["path"]), _stream(spec.trace, builds), tensor=tensor)


def _stream(trace: Trace, builds: Mapping[str, Record]) -> dict[str, Any]:
    match trace:
        case ZipfTokens(zipf=zipf):
            return {"zipf": zipf.model_dump()}
        case RecordedTokens(recorded=file):
            return {"recorded": str(expanded(file))}
        case TextTokens(text=file, tokenizer=build):
            program = builds[build]["programs"].get(TOKENIZER)
            if program is None:
                raise ColdbenchError(
                    f"build {build}: has no {TOKENIZER}; add it to the build's targets"
                )
            return {"text": str(expanded(file)), "tokenizer": program["path"]}


def read_feed(records: Sequence[str]) -> Record | None:
    """Return the record in the one file of `records`, or None where there is none."""
    if not records:
        return None
    record: Record = read_json(Path(records[0]), RECORD_KEYS)
    return record


def check_feed(record: Record) -> None:
    """Raise ColdbenchError if a feed is no longer on the disk as it was recorded."""
    path = Path(record["path"])
    try:
        found = file_sha256(path)
    except OSError as error:
        raise ColdbenchError(
            f"{path}: {error.strerror}; the cache was changed: run the workflow again with "
            "--forcerun feed"
        ) from error
    if found != record["sha256"]:
        raise ColdbenchError(
            f"{path}: has sha256 {found}, was written with {record['sha256']}; the cache was "
            "changed: run the workflow again with --forcerun feed"
        )
