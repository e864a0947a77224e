"""The headers of models in a hub's repository, read without downloading the models."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2
from huggingface_hub import constants, get_token, hf_hub_url

from coldbench.common.errors import ColdbenchError
from coldbench.sources.download import TIMEOUT_S
from coldbench.sources.header import Header, StringArrays, parse_header
from coldbench.sources.hub import listing
from coldbench.sources.hub_faults import telling
from coldbench.sources.ranges import RemoteFile
from coldbench.study.models import HubFiles

CONNECTIONS = 8


@dataclass(frozen=True)
class Traffic:
    """What reading the headers of `files` files cost: bytes of the answers' bodies, requests."""

    files: int
    bytes: int
    requests: int


class Repository:
    """A Place: a repository at one commit, `commit`; its files are called REPOSITORY/FILE.

    Names and sizes come from the hub's listing. One vocabulary is read once, not with each tier.
    """

    def __init__(self, asked: HubFiles) -> None:
        """List the repository; raises ColdbenchError where the hub will not have it."""
        if constants.is_offline_mode():
            raise ColdbenchError(
                f"{asked.repo}: HF_HUB_OFFLINE is set; unset it, or name files on this machine"
            )
        self._asked, self._folder = asked, Path(asked.repo)
        self.commit, files = listing(asked)
        self._sizes = {self._folder / name: file.size for name, file in files.items()}
        token = get_token()
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S)
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self._arrays = StringArrays()
        self._read: dict[Path, RemoteFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    @property
    def names(self) -> list[str]:
        """The names of all files, sorted, relative to the repository."""
        return sorted(path.relative_to(self._folder).as_posix() for path in self._sizes)

    def has(self, path: Path) -> bool:
        """Return whether the repository has the file."""
        return path in self._sizes

    def headers(self, paths: Sequence[Path]) -> list[Header]:
        """Read headers by ranges, several at a time."""
        return list(self._pool.map(self._header, paths))

    def traffic(self, paths: Iterable[Path]) -> Traffic:
        """Return what reading these files' headers has cost."""
        files = [self._read[path] for path in paths if path in self._read]
        return Traffic(
            len(files),
            sum(file.fetched_bytes for file in files),
            sum(file.requests for file in files),
        )

    def total_traffic(self) -> Traffic:
        """Return what reading all headers so far has cost."""
        return self.traffic(list(self._read))

    def _header(self, path: Path) -> Header:
        if path not in self._sizes:
            raise ColdbenchError(f"{path}: the repository has no such file at {self.commit}")
        name = path.relative_to(self._folder).as_posix()
        url = hf_hub_url(self._asked.repo, name, revision=self.commit, endpoint=constants.ENDPOINT)
        file = RemoteFile(path, self._sizes[path], url, self._headers, self._client)
        self._read[path] = file
        with telling(self._asked, name):
            return parse_header(file, self._arrays)
