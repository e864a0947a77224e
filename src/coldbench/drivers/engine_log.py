"""What was in force in a run, read from llama.cpp's log rather than from the flags it was given.

The lines are those of llama.cpp's model loader (src/llama-model.cpp, src/llama-model-loader.cpp,
src/llama-mmap.cpp), shown from log level 4 on; overridden tensors from level 5.
"""

import re
from typing import Any

# [M.SS.mmm.uuu] and a level letter stand before a line, where the tool adds them
_PREFIX = r"^(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:[IWED] )?"
_LOADING = re.compile(
    _PREFIX + r"\w*load_tensors: loading model tensors.*?"
    r"(?:\(load_mode = (?P<mode>[\w+]+)\)"
    r"|\(mmap = (?P<mmap>true|false)(?:, direct_io = (?P<dio>true|false))?\))?\s*$"
)
_LAZY = re.compile(_PREFIX + r"\w+: tensor (?P<name>\S+) \(size = \d+ MiB\) lazy read enabled")
_NOT_LAZY = re.compile(r"mmap is not available, so tensor (?P<name>\S+) ")
_BUFFER = re.compile(
    _PREFIX + r"\w*load_tensors:\s+(?P<name>\S.*?) (?:model )?buffer size\s+=\s+(?P<mib>[\d.]+) MiB"
)
# of an RPC server's buffers: another port in each run
_ADDRESS = re.compile(r"\[[^\[\]]*:\d+\]$")
_OFFLOADED = re.compile(_PREFIX + r"\w*load_tensors: offloaded (?P<layers>\d+/\d+) layers to GPU")
_OVERRIDDEN = re.compile(
    _PREFIX + r"tensor (?P<name>\S+) .*buffer type overridden to (?P<buffer>\S+)"
)
# debug lines of the common tools carry a D; llama-bench -v has none, but prints this one
_DEEP = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} D |^init_tokenizer: initializing tokenizer")
_THREADS = re.compile(_PREFIX + r"(?:system_info|\w*set_n_threads): n_threads = (?P<threads>\d+)\b")
_NO_GPU = re.compile(r"no usable GPU found, --\S*gpu-layers option will be ignored")
_NOT_LOCKED = re.compile(r"warning: (?:failed to mlock \d+-byte buffer|mlock not supported)")
_NOT_DIRECT = re.compile(r"Falling back to buffered I/?O")
_ADVICE_FAILED = re.compile(r"(?P<call>(?:posix_)?[mf]advise\([^)]*\)) failed: (?P<why>.*)")


def read_log(
    stderr: str, memlock_limit_bytes: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings in force that a llama.cpp log shows, and notes for the run's row.

    Settings (absent where the log does not tell): `load_mode` (auto resolved), `lazy` (names of
    lazily read tensors, or "off"), `buffers` (MiB by name: spans, not residency), `offloaded`
    ("k/n" layers), `overrides` (number of overridden tensors), `threads`, `mlock`, `direct_io`.
    `memlock_limit_bytes` is the limit that a failed lock is explained with.
    """
    log = EngineLog(stderr)
    return log.settings(), log.notes(memlock_limit_bytes)


class EngineLog:
    """What a log shows; a second load of the model replaces the first.

    `lazy` and `buffers` as in the settings of `read_log`; `overridden` holds the buffer of each
    overridden tensor, `refused_advice` the calls of madvise(2) that failed. `deep` says whether
    the log has the level (5) at which overridden tensors show, `told` whether it shows the
    loading of a model at all.
    """

    def __init__(self, stderr: str) -> None:
        self.threads: int | None = None
        self.remarks: dict[str, None] = {}
        self.refused_advice: dict[str, None] = {}
        self.locked = True
        self.direct = True
        self.no_gpu = False
        self.deep = False
        self._begin_load(None)
        for line in stderr.splitlines():
            self._read(line)

    @property
    def told(self) -> bool:
        """Return whether the log shows where the model's weights went."""
        return bool(self.buffers)

    def _begin_load(self, mode: str | None) -> None:
        self.mode = mode
        self.lazy: list[str] = []
        self.buffers: dict[str, float] = {}
        self.overridden: dict[str, str] = {}
        self.offloaded: str | None = None

    def _read(self, line: str) -> None:
        if not self.deep and _DEEP.match(line):
            self.deep = True
        if match := _LOADING.match(line):
            self._begin_load(match["mode"] or _old_mode(match["mmap"], match["dio"]))
        elif match := _LAZY.match(line):
            self.lazy.append(match["name"])
        elif match := _BUFFER.match(line):
            size = float(match["mib"]) if match["mib"].count(".") <= 1 else 0.0
            name = _ADDRESS.sub("", match["name"])
            self.buffers[name] = round(self.buffers.get(name, 0.0) + size, 2)
        elif match := _OFFLOADED.match(line):
            self.offloaded = match["layers"]
        elif match := _OVERRIDDEN.match(line):
            self.overridden[match["name"]] = _ADDRESS.sub("", match["buffer"])
        elif match := _THREADS.match(line):
            self.threads = int(match["threads"][:9])
        elif match := _NOT_LAZY.search(line):
            self.remarks[f"{match['name']} is not read lazily: mmap is not available"] = None
        elif _NO_GPU.search(line):
            self.no_gpu = True
            self.remarks["no usable GPU found: the number of offloaded layers is ignored"] = None
        elif _NOT_LOCKED.search(line):
            self.locked = False
        elif _NOT_DIRECT.search(line):
            self.direct = False
            self.remarks["direct I/O not in effect: the engine fell back to buffered reads"] = None
        elif match := _ADVICE_FAILED.search(line):
            remark = f"{match['call']} failed: {match['why'].strip()}"
            self.remarks[remark] = None
            if "madvise" in match["call"]:
                self.refused_advice[remark] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings in force, as `read_log` describes them."""
        found: dict[str, Any] = {}
        if self.mode is not None:
            found["load_mode"] = self.mode
        if self.lazy:
            found["lazy"] = sorted(set(self.lazy))
        elif self.buffers:
            found["lazy"] = "off"
        if self.buffers:
            found["buffers"] = self.buffers
        if self.offloaded is not None:
            found["offloaded"] = self.offloaded
        if self.overridden:
            found["overrides"] = len(self.overridden)
        if self.threads is not None:
            found["threads"] = self.threads
        if not self.locked or (self.mode is not None and "mlock" in self.mode):
            found["mlock"] = self.locked
        if not self.direct or self.mode == "dio":
            found["direct_io"] = self.direct
        return found

    def notes(self, memlock_limit_bytes: int | None) -> list[str]:
        """Return what goes with the run's row; a failed lock is explained with its limit."""
        notes = list(self.remarks)
        if not self.locked:
            limit = (
                ""
                if memlock_limit_bytes is None
                else f" (limit {memlock_limit_bytes / 1024:g} KiB)"
            )
            notes.append(f"mlock not in effect{limit}")
        return notes


def _old_mode(mmap: str | None, direct_io: str | None) -> str | None:
    if mmap is None:
        return None
    if direct_io == "true":
        return "dio"
    return "mmap" if mmap == "true" else "none"
