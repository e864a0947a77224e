"""A file of the hub, read by ranges: the header of a model without its weights.

RFC 9110, section 14: a server may ignore a Range request and send the whole file. Then nothing of
it is read, unless the whole file is what was wanted.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path

import httpx2
from huggingface_hub.utils._http import hf_raise_for_status

from coldbench.common.errors import ColdbenchError
from coldbench.sources.download import ATTEMPTS, WAIT_S

FIRST_BYTES = 1 << 16
MOST_BYTES = 1 << 19
"""A request's size: doubled as long as each one goes on where the last one ended."""

_NEAR_BYTES = 4096
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)
_LASTING = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol)
_TRY_AGAIN = frozenset({408, 500, 502, 503, 504})


class RemoteFile:
    """A ByteSource over HTTP; counts its requests and the bytes that their bodies brought.

    `path` names the file in messages; `size` in bytes is what the hub lists, and the server must
    agree. Reading raises the errors of httpx2 and of the hub's library as they are.
    """

    def __init__(
        self, path: Path, size: int, url: str, headers: Mapping[str, str], client: httpx2.Client
    ) -> None:
        self.path, self.size = path, size
        self.fetched_bytes = self.requests = 0
        self._url, self._headers, self._client = url, headers, client
        self._end, self._ahead = 0, FIRST_BYTES // 2

    def read(self, offset: int, least: int) -> bytes:
        """Fetch a range, more than once where the connection breaks."""
        near = self._end <= offset <= self._end + _NEAR_BYTES
        self._ahead = min(2 * self._ahead, MOST_BYTES) if near else FIRST_BYTES
        count = min(max(least, self._ahead), self.size - offset)
        body = b""
        for attempt in range(ATTEMPTS if count else 0):
            if attempt:
                time.sleep(WAIT_S * 2 ** (attempt - 1))
            last = attempt == ATTEMPTS - 1
            try:
                body = self._fetch(offset, count, last)
            except httpx2.TransportError as error:
                if last or isinstance(error, _LASTING):
                    raise
                continue
            if len(body) >= least:
                break
        if len(body) < least:
            raise self._error("the server cuts its answers off; try again later")
        self._end = offset + len(body)
        return body

    def _fetch(self, offset: int, count: int, last: bool) -> bytes:
        """Return at most `count` bytes, fewer where the body ends early."""
        headers = {
            **self._headers,
            "Range": f"bytes={offset}-{offset + count - 1}",
            "Accept-Encoding": "identity",
        }
        self.requests += 1
        body = bytearray()
        with self._client.stream("GET", self._url, headers=headers) as response:
            if response.status_code in _TRY_AGAIN and not last:
                return b""
            self._judge(response, offset, count)
            try:
                for chunk in response.iter_raw():
                    self.fetched_bytes += len(chunk)
                    body += chunk
                    if len(body) > count:
                        break
            except httpx2.TransportError:
                pass  # cut off: what came may do
        return bytes(body[:count])

    def _judge(self, response: httpx2.Response, offset: int, count: int) -> None:
        """Raise unless the body that follows is the range (or all of a small file)."""
        total: str | None = None
        match response.status_code:
            case 206:
                found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
                if found is None or int(found[1]) != offset:
                    raise self._error(
                        "the server sends another range than asked for; fetch the file and name it "
                        "on this machine"
                    )
                total = found[2] if found[2] != "*" else None
            case 200:
                total = response.headers.get("Content-Length")
                if offset or count < self.size:
                    raise self._error(
                        "the server ignores range requests and would send the whole file of "
                        f"{self.size:,} bytes; fetch the file and name it on this machine"
                    )
            case 416:
                raise self._error("is shorter on the server than listed; run the command again")
            case _:
                hf_raise_for_status(response)
                raise self._error(f"the server answers {response.status_code}; try again later")
        if total is not None and total != str(self.size):
            raise self._error(
                f"has {total} bytes on the server, {self.size} are listed: was it replaced just "
                "now? Run the same command again"
            )

    def _error(self, what: str) -> ColdbenchError:
        return ColdbenchError(f"{self.path}: {what}")
