"""Models from the Hugging Face hub, through its own library and in its own cache.

The library gives the address of the hub (HF_ENDPOINT), the token, offline mode (HF_HUB_OFFLINE),
and the cache (HF_HOME, HF_HUB_CACHE). Transfers are `download`'s, also of files that the hub has in
Xet storage and serves by plain HTTP as well: the library's begin again after a kill, and its Xet
client takes minutes to give up a storage server that it cannot reach. What has arrived is put where
the library would have put it.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    get_token,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoSibling
from pydantic import ValidationError

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import need_space
from coldbench.common.hashing import file_sha256
from coldbench.common.locks import machine
from coldbench.sources.download import TIMEOUT_S, Wanted, download, one_at_a_time
from coldbench.sources.hashes import remember_hash
from coldbench.sources.hub_faults import telling
from coldbench.study.gitnames import FULL_COMMIT
from coldbench.study.lock import LockedFile, LockedModel, Pins
from coldbench.study.models import HubFiles
from coldbench.study.words import suggest

log = logging.getLogger(__name__)

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 8


@dataclass(frozen=True)
class Listed:
    """What a hub lists of a file: size in bytes, and SHA-256 unless the file is in git itself."""

    size: int
    sha256: str | None


def pinned(asked: HubFiles, pins: Pins | None) -> LockedModel:
    """Return what a source stands for: the lock's word where it has one, else the hub's.

    The hub's word is written to the lock. Raises ColdbenchError where the lock must not move, the
    hub cannot be asked, or the declared hash is another than the locked one.
    """
    unchecked = asked.model_copy(update={"sha256": None})
    known = None if pins is None else pins.read(LockedModel)
    if known is not None and known.hf == unchecked:
        _check_declared(asked, known)
        return known
    if pins is not None:
        what = "is not there" if known is None else "is for another source than the study's"
        pins.refuse_to_move(what)
    found = _resolved(unchecked)
    _check_declared(asked, found)
    if pins is not None:
        pins.write(found)
        log.info("%s: %s is commit %s, written to %s", *_said(asked), found.commit, pins.path)
    return found


def locate(pin: LockedModel) -> list[Path | None]:
    """Return where each file lies in the hub's cache, under its own name; None if it does not."""
    found = []
    for file in pin.files:
        path = try_to_load_from_cache(
            pin.hf.repo, file.name, cache_dir=constants.HF_HUB_CACHE, revision=pin.commit
        )
        found.append(Path(path).absolute() if isinstance(path, str) else None)
    return found


def fetch(pin: LockedModel, cache: Path) -> Path:
    """Return the first file's path in the hub's cache, all files being there.

    What is there already is neither fetched nor asked for, so that this works offline, nor is it
    hashed here; hashes of what is fetched are kept in coldbench's `cache`. Raises ColdbenchError.
    """
    missing = [file for file, path in zip(pin.files, locate(pin), strict=True) if path is None]
    if missing:
        with machine(alone=False, purpose=f"download of {pin.hf.repo}"):
            _fetch_all(pin, missing, cache)
    path = locate(pin)[0]
    if path is None:
        raise ColdbenchError(
            f"{pin.hf.repo}: {pin.files[0].name} was fetched but is not in {constants.HF_HUB_CACHE}"
        )
    return path


def listing(asked: HubFiles) -> tuple[str, dict[str, Listed]]:
    """Ask the hub which commit the revision is, and which files it has there, by name.

    Raises ColdbenchError. One request, since the library's listing in pages knows no time limit.
    """
    api = HfApi(endpoint=constants.ENDPOINT)
    with telling(asked, asked.file):
        info = api.model_info(
            asked.repo, revision=asked.revision, files_metadata=True, timeout=TIMEOUT_S
        )
        files = {file.rfilename: _listed(file) for file in info.siblings or ()}
        commit = info.sha
        if commit is None or not FULL_COMMIT.fullmatch(commit):
            raise ColdbenchError(f"{asked.repo}: the hub names no commit for {asked.revision}")
    return commit, files


def arrived(pin: LockedModel, file: LockedFile) -> int:
    """Return how many bytes of a file have arrived that is not in place yet."""
    blobs = _repository_cache(pin) / "blobs"
    whole, part = blobs / file.sha256, _part(blobs, file)
    return file.size if whole.is_file() else part.stat().st_size if part.is_file() else 0


# --- what a source stands for -------------------------------------------------------------------


def _resolved(asked: HubFiles) -> LockedModel:
    commit, files = listing(asked)
    chosen = _chosen(asked, sorted(files))
    with telling(asked, chosen[0]):
        locked = [_locked(asked, commit, name, files[name]) for name in chosen]
    try:
        return LockedModel.model_validate({"hf": asked, "commit": commit, "files": locked})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        said = fault["msg"].removeprefix("Value error, ")
        raise ColdbenchError(f"{asked.repo}: the hub's {fault['input']!r} {said}") from None


def _listed(file: RepoSibling) -> Listed:
    size = file.size if file.lfs is None else file.lfs.size
    if not isinstance(size, int):
        raise TypeError(f"size of {file.rfilename}")
    return Listed(size, None if file.lfs is None else file.lfs.sha256)


def _locked(asked: HubFiles, commit: str, name: str, file: Listed) -> dict[str, object]:
    if file.sha256 is not None:
        return {"name": name, "size": file.size, "sha256": file.sha256}
    # Small files may lie in git itself; the hub then knows git's hash only.
    LockedFile.model_validate({"name": name, "size": file.size, "sha256": "0" * 64})
    with machine(alone=False, purpose=f"download of {asked.repo}"):
        path = Path(_library_download(asked.repo, name, commit))
    return {"name": name, "size": path.stat().st_size, "sha256": file_sha256(path)}


def _chosen(asked: HubFiles, names: Sequence[str]) -> list[str]:
    """Return the files of the one model that is asked for, in shard order."""
    pattern = asked.pattern
    if pattern is None:
        assert asked.file is not None  # the schema saw to it
        return _whole_set(asked, asked.file, names)
    models = [name for name in names if name.endswith(".gguf")]
    matched = [name for name in models if fnmatchcase(name, pattern)]
    sets = list(dict.fromkeys(_first_shard(name) for name in matched))
    if not sets:
        raise ColdbenchError(
            f"{asked.repo}: the pattern {pattern} matches none of its {len(models)} GGUF files"
            f"{_offer(models)}"
        )
    if len(sets) > 1:
        raise ColdbenchError(
            f"{asked.repo}: the pattern {pattern} matches {len(sets)} models: {_some(sets)}; "
            "narrow it to one"
        )
    return _whole_set(asked, matched[0], names)


def _whole_set(asked: HubFiles, name: str, names: Sequence[str]) -> list[str]:
    if name not in names:
        hint = suggest(name, list(names)) if names else ""
        raise ColdbenchError(
            f"{asked.repo}: has no file {name} at {asked.revision}"
            f"{hint if hint.startswith('; did') else _offer(names)}"
        )
    match = _SHARD.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    shards = [f"{match['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    if absent := [shard for shard in shards if shard not in names]:
        raise ColdbenchError(
            f"{asked.repo}: shard {absent[0]} of {name} is missing in the repository at "
            f"{asked.revision}; is its upload complete?"
        )
    if name != shards[0] and asked.file is not None:
        log.info("%s: %s is one shard of %d; all are taken", asked.repo, name, count)
    return shards


def _first_shard(name: str) -> str:
    match = _SHARD.fullmatch(name)
    return name if match is None else f"{match['stem']}-00001-of-{match['count']}.gguf"


def _offer(names: Sequence[str]) -> str:
    models = list(dict.fromkeys(_first_shard(name) for name in names if name.endswith(".gguf")))
    return f"; it has {_some(models)}" if models else "; it has no GGUF at all"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _check_declared(asked: HubFiles, pin: LockedModel) -> None:
    if asked.sha256 is None:
        return
    if len(pin.files) > 1:
        raise ColdbenchError(
            f"{asked.repo}: sha256 is that of one file, this model has {len(pin.files)}; leave it "
            "out, the lock has those of all"
        )
    (file,) = pin.files
    if file.sha256 != asked.sha256:
        raise ColdbenchError(
            f"{asked.repo}: {file.name} has sha256 {file.sha256} at commit {pin.commit}, the study "
            f"says {asked.sha256}; correct the study, or name the commit that has that file"
        )


# --- transfers ----------------------------------------------------------------------------------


def _fetch_all(pin: LockedModel, missing: Sequence[LockedFile], cache: Path) -> None:
    blobs = _repository_cache(pin) / "blobs"
    if constants.is_offline_mode():
        raise ColdbenchError(
            f"{pin.hf.repo}: {missing[0].name} is not in {constants.HF_HUB_CACHE} and "
            "HF_HUB_OFFLINE is set; fetch it once without that"
        )
    need = sum(file.size - arrived(pin, file) for file in missing)
    need_space(blobs, need, f"{pin.hf.repo}: {len(missing)} file(s)", "HF_HOME")
    for file in missing:
        with telling(pin.hf.model_copy(update={"revision": pin.commit}), file.name):
            _fetch_one(pin, file, blobs, cache)


def _fetch_one(pin: LockedModel, file: LockedFile, blobs: Path, cache: Path) -> None:
    repo, endpoint = pin.hf.repo, constants.ENDPOINT
    url = hf_hub_url(repo, file.name, revision=pin.commit, endpoint=endpoint)
    head = get_hf_file_metadata(url, timeout=TIMEOUT_S, endpoint=endpoint)
    in_lfs = head.etag is not None and _SHA256.fullmatch(head.etag) is not None
    if in_lfs and head.etag != file.sha256:
        raise ColdbenchError(
            f"{repo}: {file.name} has sha256 {head.etag} on the hub now, the lock says "
            f"{file.sha256} for the same commit {pin.commit}; do not trust it"
        )
    if in_lfs:
        what = f"{repo}: {file.name}"
        lock = Path(constants.HF_HUB_CACHE, ".locks", blobs.parent.name, f"{file.sha256}.lock")
        with one_at_a_time(lock, what):
            if not (blobs / file.sha256).exists():
                _plain_download(what, url, file, blobs)
                remember_hash(blobs / file.sha256, cache, file.sha256)
    # Only the link in the snapshot is left to do; or all, for a file in git itself.
    _library_download(repo, file.name, pin.commit)


def _plain_download(what: str, url: str, file: LockedFile, blobs: Path) -> None:
    # From the hub's own address each time, since the content network's is signed and expires; the
    # client does not take the token along to another host.
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    blobs.mkdir(parents=True, exist_ok=True)
    part = _part(blobs, file)
    log.info("%s: downloading %.1f MiB", what, file.size / 2**20)
    download(Wanted(what, url, file.sha256, file.size, headers), part)
    part.chmod(0o644)
    part.replace(blobs / file.sha256)


def _library_download(repo: str, name: str, commit: str) -> str:
    return hf_hub_download(
        repo,
        name,
        revision=commit,
        cache_dir=constants.HF_HUB_CACHE,
        endpoint=constants.ENDPOINT,
        library_name="coldbench",
    )


def _repository_cache(pin: LockedModel) -> Path:
    return Path(
        constants.HF_HUB_CACHE, repo_folder_name(repo_id=pin.hf.repo, repo_type="model")
    ).absolute()


def _part(blobs: Path, file: LockedFile) -> Path:
    # The library's own name for what is not complete, so that its tools know it as such.
    return blobs / f"{file.sha256}.coldbench.incomplete"


def _said(asked: HubFiles) -> tuple[str, str]:
    return asked.repo, asked.revision
