"""The record of a run: what is on disk as one JSON line, and nothing else.

A value that could not be had is None (shown as n/a), never 0. Sizes are bytes, times seconds,
rates tokens per second. `docs/results.md` describes the fields for readers.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 2
"""Version of the record; raised when a field changes its meaning."""

PROTOCOL = 2
"""Version of how a run is made; raising it makes every cell new."""

Status = Literal[
    "ok",
    "failed",
    "over budget",
    "not cold",
    "not warm",
    "not delivered",
    "disturbed",
    "invalid",
    "void",
    "refused",
]
"""The one vocabulary of outcomes; only `ok` gives figures.

failed: the program did (exit status, signal, time or output limit); over budget: killed by its
memory budget; not cold, not warm: its cache state could not be certified; not delivered: its
treatment was not seen, or the opposite was; disturbed: other work was on the machine; invalid: a
result that cannot be right; void: exit 0 without a result, or its launcher was killed; refused:
not started, since its flags, program or budget could not be had.
"""

CacheState = Literal["cold", "warm", "unmeasured"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Exit(_Record):
    """How a process ended, as its launcher saw it."""

    ended: Literal["exit", "signal", "time limit", "output limit", "not started"]
    code: int | None = None
    signal: int | None = None
    detail: str = ""
    wall_s: float | None = None
    user_s: float | None = None
    system_s: float | None = None


class Memory(_Record):
    """Memory of the engine process alone; the split is of the sample with the largest RSS.

    `tree_peak_rss_bytes` is the largest sum over the process and its descendants, of at most
    `processes` at a time; the `cgroup_` figures are the control group's own, page cache included.
    """

    peak_rss_bytes: int | None = None
    anon_at_peak_bytes: int | None = None
    file_at_peak_bytes: int | None = None
    shmem_at_peak_bytes: int | None = None
    swap_at_peak_bytes: int | None = None
    peak_locked_bytes: int | None = None
    tree_peak_rss_bytes: int | None = None
    processes: int | None = None
    budget_bytes: int | None = None
    cgroup_peak_bytes: int | None = None
    cgroup_oom_kills: int | None = None
    server_peak_rss_bytes: int | None = None
    """Of the RPC server beside the engine."""


class Io(_Record):
    """Physical reads (they count what mmap faults in) and faults of the engine process.

    `read_bytes` are by the process's own counters, `second_read_bytes` by `second_route`;
    `attributed` says whether the two agree.
    """

    read_bytes: int | None = None
    second_read_bytes: int | None = None
    second_route: str | None = None
    attributed: bool | None = None
    rchar_bytes: int | None = None
    major_faults: int | None = None
    minor_faults: int | None = None


class Residency(_Record):
    """Bytes in the page cache: by model file, and of the table tensor's range."""

    files: dict[str, int] = {}
    table_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(self.files.values())


class Run(_Record):
    """One fresh engine process, or the reason why there was none."""

    format: int = FORMAT
    run: str
    attempt: int = 1
    study: str
    model: str
    workload: str
    build: str
    arm: str
    cell: str
    hashes: dict[str, str]
    block: int
    pass_: int = Field(alias="pass", serialization_alias="pass")
    position: int
    state: CacheState
    argv: list[str]
    environment: dict[str, str]
    started: str
    host: dict[str, Any]
    """The machine as coldbench found it."""
    settings: dict[str, int | str] = {}
    """Host settings of the arm, in force during this run alone."""
    machine: dict[str, dict[str, Any]] = {}
    status: Status
    reason: str = ""
    notes: list[str] = []
    exit: Exit = Exit(ended="not started")
    load_s: float | None = None
    metrics: dict[str, float] = {}
    effective: dict[str, Any] = {}
    certificate: dict[str, Any] = {}
    """How the cache state was certified."""
    delivered: dict[str, bool] = {}
    """What had to be seen (or not) of the treatment, and whether it was so."""
    loaded: list[str] | None = None
    """Files that the process had mapped as code."""
    disturbance: dict[str, float | None] = {}
    """What else the machine did meanwhile."""
    memory: Memory = Memory()
    io: Io = Io()
    before: Residency = Residency()
    after: Residency = Residency()
    table_total_bytes: int | None = None
    digest: str | None = None
    tokens: int | None = None
    rows: list[dict[str, Any]] = []
    output: dict[str, str] = {}

    @property
    def read_ahead_kb(self) -> int | None:
        """Return how far the kernel read ahead on the model's device during this run, in KiB."""
        own = self.settings.get("read_ahead_kb", self.host.get("disk_read_ahead_kb"))
        return own if isinstance(own, int) else None
