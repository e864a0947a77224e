"""A model file from the web: kept under its own name in a folder named by its hash."""

import re
import urllib.parse
from pathlib import Path

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import write_json
from coldbench.common.hashing import folder_key
from coldbench.common.locks import machine
from coldbench.sources.download import Wanted, download, one_at_a_time
from coldbench.sources.hashes import hash_of, remember_hash
from coldbench.study.models import UrlSource

_UNNAMED = "model.gguf"
_NAME_BYTES = 180


def url_path(source: UrlSource, cache: Path) -> Path:
    """Return where the file lies, or will lie, in the cache."""
    name = file_name(source.url)
    return cache / "models" / folder_key({"sha256": source.sha256, "name": name}) / name


def url_part(path: Path) -> Path:
    """Return where the part of the file at `path` lies that has arrived so far."""
    return path.with_name(".part")


def url_model(source: UrlSource, cache: Path) -> Path:
    """Return the path of the file, fetched unless a good copy is there.

    Raises ColdbenchError where it cannot be had or is another file than the hash says; a good copy
    of another hash is not touched.
    """
    path = url_path(source, cache)
    what = plain_address(source.url)
    try:
        with one_at_a_time(path.with_name(".lock"), what):
            if path.is_file() and hash_of(path, cache) == source.sha256:
                return path
            part = url_part(path)
            with machine(alone=False, purpose=f"download of {path.name}"):
                download(Wanted(what, source.url, source.sha256), part)
            part.chmod(0o644)
            part.replace(path)
            remember_hash(path, cache, source.sha256)
            write_json(
                path.with_name(f"{path.name}.json"),
                {"sha256": source.sha256, "size": path.stat().st_size},
            )
    except OSError as error:
        raise ColdbenchError(f"{path.parent}: cannot be written: {error.strerror}") from error
    return path


def plain_address(url: str) -> str:
    """Return an address for messages: without its query, which may be long or private."""
    return urllib.parse.urlsplit(url)._replace(query="", fragment="").geturl()


def file_name(url: str) -> str:
    """Return a file name for an address: its last part, always inside the folder it is put in."""
    last = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    name = re.sub(r"[/\x00-\x1f\x7f-\x9f\ufffd\\]", "_", last)
    # Dot files are the cache's own: the lock and what has not arrived yet.
    if name.startswith("."):
        name = f"_{name[1:]}"
    name = name.encode(errors="replace")[-_NAME_BYTES:].decode(errors="ignore")
    return name if name.strip("._ ") else _UNNAMED
