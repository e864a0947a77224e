"""llama.cpp's RPC server as an offload device on this machine: started, checked and stopped."""

import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.base import excerpt

HOST = "127.0.0.1"
START_S = 10.0
STOP_S = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass
class Server:
    """A running server. `peak_rss_bytes` is known once it was stopped (VmHWM, proc(5))."""

    address: str
    peak_rss_bytes: int | None = None


@contextmanager
def rpc_server(
    program: Path, threads: int, environment: Mapping[str, str], log: Path
) -> Iterator[Server]:
    """Run an RPC server with `threads` threads for as long as the context lasts.

    It listens on the loopback alone, writes to `log`, and dies with this process. Raises
    ColdbenchError where it does not come up, and where it ended by itself meanwhile.
    """
    port = _free_port()
    server = Server(f"{HOST}:{port}")
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(
                [program, "-H", HOST, "-p", str(port), "-t", str(threads)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise ColdbenchError(f"{program}: cannot be started: {error.strerror}") from error
        try:
            _wait_for(process, port, program, log)
            yield server
            if process.poll() is not None:
                raise ColdbenchError(f"{program}: {_ended(process, log)} while the engine ran")
        finally:
            server.peak_rss_bytes = _peak(process.pid)
            _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for(process: "subprocess.Popen[bytes]", port: int, program: Path, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        if process.poll() is not None:
            raise ColdbenchError(f"{program}: {_ended(process, log)} before it listened")
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise ColdbenchError(
                    f"{program}: does not listen on {HOST}:{port} after {START_S:g} s (see {log})"
                ) from None
            time.sleep(0.02)
        else:
            return


def _ended(process: "subprocess.Popen[bytes]", log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = f" ({excerpt(lines[-1])})" if lines else ""
    return f"the RPC server ended with status {process.returncode}{said}"


def _peak(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = [line for line in text.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(found[0].split()[1]) if found else None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
