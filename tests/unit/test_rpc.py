"""The server beside an engine: started, checked, measured and stopped, with real small programs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure import rpc
from coldbench.measure.launcher import environment_for
from coldbench.measure.rpc import Server, rpc_server

MIB = 2**20
HELD = 48 * MIB
SERVER = f"""\
#!{sys.executable}
import os, signal, socket, sys, time
told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("threads", told["-t"], "seen", os.environ.get("SEEN"), "pid", os.getpid(), flush=True)
BEFORE
held = bytearray(b"x") * {HELD}
del held
server = socket.create_server((told["-H"], int(told["-p"])))
while True:
    connection, _ = server.accept()
    asked = connection.recv(9)
    if asked == b"end":
        print("cannot go on", flush=True)
        os._exit(7)
    connection.sendall(asked)
    connection.close()
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a server never comes up, or does not stop, it is told soon."""
    monkeypatch.setattr(rpc, "STOP_S", 1.0)


def program(folder: Path, before: str = "", text: str = SERVER) -> Path:
    path = folder / "ggml-rpc-server"
    path.write_text(text.replace("BEFORE", before))
    path.chmod(0o755)
    return path


def environment(folder: Path) -> Mapping[str, str]:
    return environment_for({"SEEN": "all of it"}, folder)


def ask(server: Server, words: bytes) -> bytes:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(words)
        return connection.recv(9)


def pid_in(log: Path) -> int:
    return int(log.read_text().split("pid")[1].split()[0])


def alive(pid: int) -> bool:
    """Return whether a process is there and not only waiting to be waited for."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_it_serves_on_the_loopback_until_the_context_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with rpc_server(program(tmp_path), 3, environment(tmp_path), log) as server:
        assert server.address.startswith("127.0.0.1:")
        assert server.peak_rss_bytes is None
        assert ask(server, b"hello") == b"hello"
        pid = pid_in(log)
        assert alive(pid)
    assert log.read_text().startswith("threads 3 seen all of it pid ")
    assert not alive(pid)
    # The peak, though the memory was given back long before the end.
    assert server.peak_rss_bytes is not None
    assert HELD < server.peak_rss_bytes < HELD + 64 * MIB


def test_two_have_ports_of_their_own(tmp_path: Path) -> None:
    path, given = program(tmp_path), environment(tmp_path)
    with (
        rpc_server(path, 1, given, tmp_path / "one") as one,
        rpc_server(path, 1, given, tmp_path / "two") as two,
    ):
        assert one.address != two.address
        assert ask(one, b"1") == b"1"
        assert ask(two, b"2") == b"2"


def test_one_that_ends_at_once_is_told_with_its_last_line(tmp_path: Path) -> None:
    path = program(tmp_path, "print('no such\\x1b device', flush=True); os._exit(3)")
    with (
        pytest.raises(ColdbenchError) as caught,
        rpc_server(path, 1, environment(tmp_path), tmp_path / "log"),
    ):
        raise AssertionError("must not begin")
    assert str(caught.value) == (
        f"{path}: the RPC server ended with status 3 (no such\\x1b device) before it listened"
    )
    silent = program(tmp_path, text="#!/bin/sh\nexit 4\n")
    with (
        pytest.raises(ColdbenchError, match=r"server ended with status 4 before it listened"),
        rpc_server(silent, 1, environment(tmp_path), tmp_path / "log"),
    ):
        raise AssertionError("must not begin")


def test_one_that_never_listens_is_told_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "START_S", 1.0)
    log = tmp_path / "log"
    # Deaf to the polite signal too.
    path = program(
        tmp_path, text="#!/bin/sh\ntrap '' TERM\necho pid $$\nwhile :; do sleep 9; done\n"
    )
    with (
        pytest.raises(ColdbenchError) as caught,
        rpc_server(path, 1, environment(tmp_path), log),
    ):
        raise AssertionError("must not begin")
    said = str(caught.value)
    assert said.startswith(f"{path}: does not listen on 127.0.0.1:")
    assert said.endswith(f" after 1 s (see {log})")
    assert not alive(pid_in(log))


def test_one_that_ends_while_the_engine_runs_is_told(tmp_path: Path) -> None:
    path, log = program(tmp_path), tmp_path / "log"
    servers: list[Server] = []

    def run() -> None:
        with rpc_server(path, 1, environment(tmp_path), log) as server:
            servers.append(server)
            assert ask(server, b"end") == b""
            assert ends(pid_in(log))

    with pytest.raises(ColdbenchError) as caught:
        run()
    assert str(caught.value) == (
        f"{path}: the RPC server ended with status 7 (cannot go on) while the engine ran"
    )
    assert servers[0].peak_rss_bytes is None  # gone with the process


def test_what_fails_beside_it_is_passed_on_and_it_is_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(ZeroDivisionError),
        rpc_server(program(tmp_path), 1, environment(tmp_path), log),
    ):
        raise ZeroDivisionError
    assert not alive(pid_in(log))


@pytest.mark.parametrize("mode", [None, 0o644])
def test_a_program_that_cannot_be_started_is_named(tmp_path: Path, mode: int | None) -> None:
    path = tmp_path / "absent"
    if mode is not None:
        path = program(tmp_path)
        path.chmod(mode)
    why = "No such file or directory" if mode is None else "Permission denied"
    with (
        pytest.raises(ColdbenchError, match=f"^{path}: cannot be started: {why}$"),
        rpc_server(path, 1, environment(tmp_path), tmp_path / "log"),
    ):
        raise AssertionError("must not begin")


PARENT = """\
import sys, time
from pathlib import Path
from coldbench.measure.rpc import rpc_server
with rpc_server(Path(sys.argv[1]), 1, {"PATH": "/usr/bin:/bin"}, Path(sys.argv[2])) as server:
    print(server.address, flush=True)
    time.sleep(600)
"""


def test_it_dies_with_its_parent_even_a_killed_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, program(tmp_path), log],
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"127.0.0.1:")
        pid = pid_in(log)
        assert alive(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    assert ends(pid)
