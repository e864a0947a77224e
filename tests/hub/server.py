"""A hub on this machine: it answers what huggingface_hub asks, and fails as hubs fail.

The hub itself is http://127.0.0.1:PORT, its content network http://localhost:PORT/cdn/...: another
host for the client, so that a token which is sent there is a leak (`leaks`). Plain files for `url`
sources lie under /files/.
"""

import hashlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

SIGNATURE = "X-Amz-Signature=5161e7"
_PIECE = 64 * 1024


@dataclass
class Fault:
    """How the body of one file is served.

    `statuses` are answered first, one a request, `bare` without a body. `cut_after` ends the
    connection after so many bytes of a body, `cuts` times (-1: always). `announced` is another
    Content-Length than the body's. `pause_s` comes before each piece of 64 KiB. `content` is
    another body than the hash says. `wrong_range` answers every range with the file's beginning.
    `chunked` announces nothing. `etags` are those of the answers, one each; `blind` does not look
    at If-Range. `loop` sends the client to the same address again.
    """

    statuses: list[int] = field(default_factory=list)
    retry_after: str | None = None
    ignore_range: bool = False
    wrong_range: bool = False
    cut_after: int | None = None
    cuts: int = -1
    announced: int | None = None
    pause_s: float = 0.0
    content: bytes | None = None
    chunked: bool = False
    etag: str | None = None
    etags: list[str] = field(default_factory=list)
    blind: bool = False
    bare: bool = False
    loop: bool = False


@dataclass
class Request:
    """What a client asked."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class Repo:
    """A repository: what branches stand for, and the files of each commit."""

    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    in_git: set[str] = field(default_factory=set)
    """Files that are not in LFS."""
    access: str = "public"
    """public, gated (to look at is free) or private."""
    xet: bool = False
    """Its files are in Xet storage too, whose server is not to be reached from here."""


class HubServer:
    """The server; use it in a `with`. `tokens` maps valid tokens to the repositories they open."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.files: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: dict[str, Fault] = {}
        self.tokens: dict[str, set[str]] = {}
        self.requests: list[Request] = []
        self.leaks: list[Request] = []
        self.api_statuses: list[int] = []
        self.api_answer: bytes | None = None
        """What the API says instead of all it should."""
        self.api_silent = threading.Event()
        """Set: the API is not heard from until the server ends."""
        self.ended = threading.Event()
        self.sent_bytes = 0
        self._http = _Server(self)

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """The hub's address, for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def file_url(self, name: str) -> str:
        return f"{self.url}/files/{quote(name)}"

    def commit(self, repo: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Make a commit of these files on a branch and return its hash."""
        known = self.repos.setdefault(repo, Repo())
        digest = hashlib.sha1(f"{repo} {len(known.commits)}".encode())
        for name, content in sorted(files.items()):
            digest.update(name.encode() + hashlib.sha256(content).digest())
            self.blobs[hashlib.sha256(content).hexdigest()] = content
        known.commits[digest.hexdigest()] = dict(files)
        known.branches[branch] = digest.hexdigest()
        return digest.hexdigest()

    def fault(self, name: str, **how: Any) -> None:
        """Serve the body of the file called `name` like this from now on."""
        self.faults[name] = Fault(**how)

    def bodies(self, name: str = "") -> list[Request]:
        """Return the requests for a file's body (not its metadata), in their order."""
        return [
            request
            for request in self.requests
            if request.method == "GET"
            and request.path.startswith(("/cdn/", "/files/"))
            and name in unquote(request.path)
        ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: HubServer) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is none of our errors."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    # --- routes ---------------------------------------------------------------------------------

    def _answer(self) -> None:
        hub = self.server.hub
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(self.command, self.path, headers)
        hub.requests.append(request)
        parts = urlsplit(self.path)
        segments = parts.path.strip("/").split("/")
        match segments:
            case ["api", "models", owner, name, *rest]:
                self._api(f"{owner}/{name}", [unquote(part) for part in rest])
            case ["cdn", sha256, name]:
                if "authorization" in headers:
                    hub.leaks.append(request)
                self._body(hub.blobs.get(sha256), unquote(name), f'"{sha256}"')
            case ["files", *name]:
                joined = unquote("/".join(name))
                self._body(hub.files.get(joined), joined, None)
            case [owner, name, "resolve", revision, *path]:
                self._resolve(f"{owner}/{name}", unquote(revision), unquote("/".join(path)))
            case _:
                self._json(404, {"error": "Not Found"})

    def _api(self, repo: str, rest: list[str]) -> None:
        if self.server.hub.api_statuses:
            status = self.server.hub.api_statuses.pop(0)
            extra = {"Retry-After": "7"} if status == 429 else {}
            self._json(status, {"error": "an error of the hub"}, extra)
            return
        if self.server.hub.api_silent.is_set():
            self.server.hub.ended.wait()
            return
        if self.server.hub.api_answer is not None:
            self._plain(200, self.server.hub.api_answer, {})
            return
        if not self._may(repo, look_only=True):
            return
        known = self.server.hub.repos[repo]
        revision = rest[1] if len(rest) > 1 else "main"
        commit = self._commit(known, revision)
        if commit is None:
            return
        match rest:
            case [] | ["revision", _]:
                self._json(
                    200,
                    {
                        "_id": "0" * 24,
                        "id": repo,
                        "modelId": repo,
                        "sha": commit,
                        "private": known.access == "private",
                        "gated": "manual" if known.access == "gated" else False,
                        "disabled": False,
                        "tags": ["gguf"],
                        "downloads": 1,
                        "likes": 0,
                        "siblings": [
                            _sibling(name, content, name in known.in_git)
                            for name, content in sorted(known.commits[commit].items())
                        ],
                    },
                )
            case _:
                self._json(404, {"error": "Not Found"})

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if not self._may(repo, look_only=False):
            return
        known = self.server.hub.repos[repo]
        commit = self._commit(known, revision)
        if commit is None:
            return
        content = known.commits[commit].get(name)
        if content is None:
            extra = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            self._json(404, {"error": "Entry not found"}, extra)
            return
        if name in known.in_git:
            self._body(content, name, f'"{_git_hash(content)}"', {"X-Repo-Commit": commit})
            return
        sha256 = hashlib.sha256(content).hexdigest()
        place = f"http://localhost:{self.server.hub.port}/cdn/{sha256}/{quote(name, safe='')}"
        extra = {
            "Location": f"{place}?{SIGNATURE}",
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{sha256}"',
            "ETag": f'"{_git_hash(content)}"',
        }
        if known.xet:
            token = f"{self.server.hub.url}/api/models/{repo}/xet-read-token/{commit}"
            extra["X-Xet-Hash"] = sha256
            extra["Link"] = f'<{token}>; rel="xet-auth"'
        self._json(302, None, extra)

    def _may(self, repo: str, *, look_only: bool) -> bool:
        """Answer like the hub where a repository is not open to who asks."""
        hub = self.server.hub
        said = self.headers.get("Authorization", "")
        token = said.removeprefix("Bearer ") if said else None
        if token is not None and token not in hub.tokens:
            told = {"X-Error-Message": "Invalid credentials in Authorization header"}
            self._json(401, {"error": "Invalid credentials in Authorization header"}, told)
            return False
        known = hub.repos.get(repo)
        granted = token is not None and repo in hub.tokens[token]
        if known is None or (known.access == "private" and not granted):
            status = 401 if token is None else 404
            code = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            self._json(status, {"error": "Repository not found"}, code)
            return False
        if known.access == "gated" and not granted and not look_only:
            status = 401 if token is None else 403
            code = {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {repo} is gated"}
            self._json(status, {"error": f"Access to {repo} is restricted."}, code)
            return False
        return True

    def _commit(self, known: Repo, revision: str) -> str | None:
        commit = known.branches.get(revision, revision)
        if commit in known.commits:
            return commit
        self._json(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        return None

    # --- answers --------------------------------------------------------------------------------

    def _json(self, status: int, value: Any, extra: Mapping[str, str] | None = None) -> None:
        self._plain(status, b"" if value is None else json.dumps(value).encode(), extra or {})

    def _plain(self, status: int, body: bytes, extra: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, content in extra.items():
            self.send_header(key, content)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(
        self,
        content: bytes | None,
        name: str,
        etag: str | None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        fault = self.server.hub.faults.get(name, Fault())
        if content is None:
            self._json(404, {"error": "Not Found"})
            return
        if fault.statuses:
            wish = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            said = None if fault.bare else {"error": "not now"}
            self._json(fault.statuses.pop(0), said, wish)
            return
        if fault.loop:
            self._json(302, None, {"Location": self.path})
            return
        content = content if fault.content is None else fault.content
        etag = fault.etags.pop(0) if fault.etags else fault.etag or etag
        asked = self._asked(len(content), fault, etag)
        start, end = asked or (0, len(content))
        if asked is not None and start >= len(content):
            self._json(416, {"error": "range"}, {"Content-Range": f"bytes */{len(content)}"})
            return
        if fault.wrong_range and asked is not None:
            start = 0
        body = content[start:end]
        self.send_response(200 if asked is None else 206)
        for key, value in (extra or {}).items():
            self.send_header(key, value)
        if asked is not None:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        if etag is not None:
            self.send_header("ETag", etag)
        self.send_header("Accept-Ranges", "bytes")
        if fault.chunked:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(fault.announced or len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self._send(body if fault.announced is None else body[: fault.announced], fault)

    def _asked(self, size: int, fault: Fault, etag: str | None) -> tuple[int, int] | None:
        """Return the range that is to be sent; None for the whole file."""
        said = self.headers.get("Range", "")
        unchanged = fault.blind or self.headers.get("If-Range", etag) == etag
        if fault.ignore_range or not said.startswith("bytes=") or not unchanged:
            return None
        first, _, last = said.removeprefix("bytes=").partition("-")
        return int(first), min(int(last) + 1, size) if last else size

    def _send(self, body: bytes, fault: Fault) -> None:
        cutting = fault.cut_after is not None and fault.cuts != 0
        if cutting:
            fault.cuts -= 1
            body = body[: fault.cut_after]
        for at in range(0, len(body), _PIECE):
            if fault.pause_s:
                time.sleep(fault.pause_s)
            piece = body[at : at + _PIECE]
            self.wfile.write(piece)
            self.server.hub.sent_bytes += len(piece)
        if cutting or (fault.announced or 0) > len(body):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True


def _sibling(name: str, content: bytes, in_git: bool) -> dict[str, Any]:
    listed = {"rfilename": name, "blobId": _git_hash(content), "size": len(content)}
    if in_git:
        return listed
    sha256 = hashlib.sha256(content).hexdigest()
    return listed | {"lfs": {"sha256": sha256, "size": len(content), "pointerSize": 134}}


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
