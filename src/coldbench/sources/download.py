"""One large file over HTTP: resumed where it stopped, and trusted only by its hash.

A server may ignore a Range request, cut the body, announce another length than it sends, or answer
a range that nobody asked for (RFC 9110, sections 14 and 15.3.7). Each is noticed here; none of them
gives a file its final name.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from filelock import FileLock, Timeout
from tqdm import tqdm

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import need_space
from coldbench.common.hashing import CHUNK_BYTES
from coldbench.sources.header import read_header

log = logging.getLogger(__name__)
# Its lines at INFO have whole addresses, and those of content networks are signed.
logging.getLogger("httpx2").setLevel(logging.WARNING)

ATTEMPTS = 5
"""How often in a row a transfer may bring nothing new."""

WAIT_S = 1.0
"""Before the second attempt; doubled each time."""

LONGEST_WAIT_S = 60.0
TIMEOUT_S = 30.0
"""Of the connection, and of a pause in the body."""

LOG_EVERY_S = 30.0

_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)
_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Wanted:
    """What to fetch: `what` names it in messages (`url` itself may be signed, `headers` secret).

    `size` in bytes is None where only the server knows it.
    """

    what: str
    url: str = field(repr=False)
    sha256: str
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def download(wanted: Wanted, part: Path) -> None:
    """Fetch `wanted` into `part`, which is complete, verified and on the disk afterwards.

    A `part` that is there is continued; it is kept when the transfer fails, for the next time, and
    removed when its content turns out wrong. Raises ColdbenchError.
    """
    try:
        inherited = part.exists() and part.stat().st_size > 0
        with _client() as client, part.open("ab") as stream:
            transfer = _Transfer(wanted, part, stream, client)
            transfer.run()
            if transfer.digest.hexdigest() != wanted.sha256 and inherited:
                log.info("%s: what an earlier run left does not fit; from the start", wanted.what)
                transfer.restart()
                transfer.run()
            stream.flush()
            os.fsync(stream.fileno())
            # A model that was just fetched is not to be warm for whatever comes next.
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise ColdbenchError(f"{part.parent}: cannot be written: {error.strerror}") from error
    found = transfer.digest.hexdigest()
    if found != wanted.sha256:
        reason = _looks_like(part)
        part.unlink()
        raise ColdbenchError(
            f"{wanted.what}: the download has sha256 {found} ({transfer.have:,} bytes), expected "
            f"is {wanted.sha256}{_sized(wanted)}{reason}; it was not kept"
        )


@contextmanager
def one_at_a_time(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file; says in the log when it waits for another process, and for which file.

    Raises ColdbenchError where the lock file cannot be written.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock, mode=0o664)
        try:
            held.acquire(timeout=0)
        except Timeout:
            log.info("%s: waiting for another process that fetches it (it holds %s)", what, lock)
            held.acquire()
    except OSError as error:
        raise ColdbenchError(f"{lock}: cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        held.release()


def _client() -> httpx2.Client:
    # The client drops the authorization header where a redirect leads to another host.
    return httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S)


class _AgainError(Exception):
    """The transfer stopped for a reason that may pass; `wait` in seconds is the server's wish."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class _Transfer:
    """The state of one file on its way: what has arrived, and its hash so far."""

    def __init__(self, wanted: Wanted, part: Path, stream: Any, client: httpx2.Client) -> None:
        self.wanted, self.part, self.stream, self.client = wanted, part, stream, client
        self.digest = hashlib.sha256()
        self.have = 0
        self.ranges = True
        self.etag: str | None = None
        with part.open("rb") as arrived:
            while chunk := arrived.read(CHUNK_BYTES):
                self.digest.update(chunk)
                self.have += len(chunk)

    def restart(self) -> None:
        self.stream.truncate(0)
        self.digest, self.have = hashlib.sha256(), 0

    def run(self) -> None:
        """Transfer until all is here; raises ColdbenchError where that does not come about."""
        if self.wanted.size is not None and self.have > self.wanted.size:
            self.restart()
        failures, most = 0, self.have
        # The hash alone says that all is here: an earlier run may have been killed at the last
        # byte, and a server may announce more than there is.
        while self.digest.hexdigest() != self.wanted.sha256:
            try:
                self._once()
                return
            except _AgainError as again:
                failures = 1 if self.have > most else failures + 1
                most = max(most, self.have)
                if failures >= ATTEMPTS and self.digest.hexdigest() != self.wanted.sha256:
                    raise ColdbenchError(
                        f"{self.wanted.what}: {again}; {self.have:,} bytes have arrived and are "
                        "kept: the same command goes on from there"
                    ) from None
                wait = WAIT_S * 2 ** (failures - 1) if again.wait is None else again.wait
                log.info("%s: %s; trying again in %.0f s", self.wanted.what, again, wait)
                time.sleep(min(wait, LONGEST_WAIT_S))

    def _once(self) -> None:
        headers = {**self.wanted.headers, "Accept-Encoding": "identity"}
        if self.have and self.ranges:
            headers["Range"] = f"bytes={self.have}-"
            if self.etag is not None:
                headers["If-Range"] = self.etag
        try:
            with self.client.stream("GET", self.wanted.url, headers=headers) as response:
                self._receive(response, self._begin(response))
        except (httpx2.LocalProtocolError, UnicodeEncodeError):
            # Its text quotes the header, and so may quote a token.
            raise ColdbenchError(
                f"{self.wanted.what}: the request cannot be sent; is the token free of spaces and "
                "control characters?"
            ) from None
        except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
            raise ColdbenchError(
                f"{self.wanted.what}: the server's redirects lead nowhere ({type(error).__name__})"
            ) from None
        except httpx2.ConnectError as error:
            raise _AgainError(
                f"cannot be reached ({error}): is this machine offline, or the proxy wrong?"
            ) from None
        except httpx2.TimeoutException:
            raise _AgainError(f"nothing came for {TIMEOUT_S:.0f} s") from None
        except httpx2.TransportError as error:
            raise _AgainError(f"the connection broke ({error})") from None
        except httpx2.DecodingError:
            raise _AgainError("the body is encoded wrongly") from None

    def _begin(self, response: httpx2.Response) -> int | None:
        """Judge the answer's head; return the whole file's size in bytes, None if unknown."""
        status = response.status_code
        if status in _TRY_AGAIN:
            reason = "the server limits requests (429)" if status == 429 else f"answers {status}"
            raise _AgainError(reason, _seconds(response.headers.get("Retry-After")))
        if status == 206:
            match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != self.have:
                self.ranges = False
                self.restart()
                raise _AgainError("the server sent another range than asked for")
            tag = _strong_tag(response)
            if None not in (tag, self.etag) and tag != self.etag:
                self.etag = None
                self.restart()
                raise _AgainError("the server's file was replaced meanwhile; from the start")
            total = None if match[2] == "*" else int(match[2])
        elif status == 200:
            if self.have:
                log.info("%s: the server cannot resume; from the start", self.wanted.what)
                self.restart()
            total = _length(response)
        elif status == 416 and self.have:
            self.restart()
            raise _AgainError("what is here is longer than the server's file")
        else:
            raise ColdbenchError(f"{self.wanted.what}: {_refusal(status)}")
        self.etag = _strong_tag(response)
        if None not in (total, self.wanted.size) and total != self.wanted.size:
            raise ColdbenchError(
                f"{self.wanted.what}: the server announces {total:,} bytes, expected are "
                f"{self.wanted.size:,}; the file was replaced, or the server is not to be trusted"
            )
        return total if self.wanted.size is None else self.wanted.size

    def _receive(self, response: httpx2.Response, total: int | None) -> None:
        if total is not None and self.wanted.size is None:  # else the caller has seen to it
            need_space(self.part.parent, total - self.have, self.wanted.what)
        logged = time.monotonic()
        with tqdm(
            desc=self.wanted.what[-40:],
            total=total,
            initial=self.have,
            unit="B",
            unit_scale=True,
            disable=None,  # no bar where nobody looks
        ) as bar:
            for chunk in response.iter_bytes():
                if total is not None and self.have + len(chunk) > total:
                    self.restart()
                    raise ColdbenchError(
                        f"{self.wanted.what}: the server sends more than {total:,} bytes"
                    )
                self.stream.write(chunk)
                self.digest.update(chunk)
                self.have += len(chunk)
                bar.update(len(chunk))
                if time.monotonic() - logged > LOG_EVERY_S:
                    logged = time.monotonic()
                    of = "" if total is None else f" of {total / 2**20:,.0f}"
                    log.info("%s: %.0f%s MiB", self.wanted.what, self.have / 2**20, of)
        if total is not None and self.have < total:
            raise _AgainError(f"the server ended after {self.have:,} of {total:,} bytes")


def _strong_tag(response: httpx2.Response) -> str | None:
    """Return an ETag that stands for each byte (RFC 9110, 8.8.1); None without one."""
    tag: str = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else None


def _length(response: httpx2.Response) -> int | None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        return None
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def _seconds(text: str | None) -> float | None:
    """Return a Retry-After in seconds; None for a date or nothing."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _refusal(status: int) -> str:
    match status:
        case 401 | 403 | 407:
            return f"the server wants another login ({status})"
        case 404 | 410:
            return f"is not there ({status}); correct the address"
    return f"the server answers {status}"


def _looks_like(part: Path) -> str:
    """Return what is to be said of a wrong file whose content tells what it is."""
    try:
        read_header(part)
    except ColdbenchError as error:
        reason = str(error).removeprefix(f"{part}: ")
        return f"; {reason}"
    return ""


def _sized(wanted: Wanted) -> str:
    return "" if wanted.size is None else f" ({wanted.size:,} bytes)"
