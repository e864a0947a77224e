"""A FUSE file system of one file, mounted without any library: run as root in a mount namespace.

Run as `fuse_file.py MOUNT PROGRAM...`: PROGRAM finds MOUNT/file. Exits 99 where nothing can be
mounted. To the letter of include/uapi/linux/fuse.h (version 7.31).
"""

import ctypes
import os
import signal
import stat
import struct
import subprocess
import sys

LOOKUP, GETATTR, OPEN, READ, STATFS, INIT, OPENDIR = 1, 3, 14, 15, 17, 26, 27
FORGET, BATCH_FORGET = 2, 42  # neither is answered
SUCCEEDS = {18, 20, 25, 29, OPENDIR}  # release, fsync, flush, releasedir
DATA = b"x" * (1 << 20)


def attributes(node: int) -> bytes:
    is_file = node == 2
    mode = (stat.S_IFREG | 0o644) if is_file else (stat.S_IFDIR | 0o755)
    size = len(DATA) if is_file else 0
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512, *[0] * 6, mode, 1, *[0] * 5)


def answer(opcode: int, node: int, body: bytes) -> bytes | int:
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 0, 0, 1 << 17, 1, 0, 0, 0)
    if opcode == LOOKUP:
        if body != b"file\0":
            return -2  # ENOENT
        return struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + attributes(2)
    if opcode == GETATTR:
        return struct.pack("<QII", 60, 0, 0) + attributes(node)
    if opcode == OPEN:
        return struct.pack("<QII", 0, 2, 0)  # keep the cache
    if opcode == READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        return DATA[offset : offset + size]
    if opcode in SUCCEEDS:
        return struct.pack("<QII", 0, 0, 0) if opcode == OPENDIR else b""
    return -38  # ENOSYS


def serve(device: int) -> None:
    while True:
        request = os.read(device, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode in (FORGET, BATCH_FORGET):
            continue
        given = answer(opcode, node, request[40:])
        body, error = (b"", given) if isinstance(given, int) else (given, 0)
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def main() -> None:
    mount, program = sys.argv[1], sys.argv[2:]
    libc = ctypes.CDLL(None)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        sys.exit(99)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"coldbench-test", mount.encode(), b"fuse", 6, options.encode()):
        sys.exit(99)
    server = os.fork()
    if server == 0:
        serve(device)
    try:
        sys.exit(subprocess.run(program, timeout=30).returncode)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


if __name__ == "__main__":
    main()
