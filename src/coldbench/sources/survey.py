"""The models of a repository, a folder or some files, by their headers alone."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import expanded
from coldbench.sources.header import ModelMap, first_shard, read_model, read_model_at
from coldbench.sources.remote_header import CONNECTIONS, Repository, Traffic
from coldbench.study.models import HubFiles


@dataclass(frozen=True)
class Surveyed:
    """A model: `name` at its place, and its map; or in `fault` why its header cannot be read.

    `traffic` is what its headers cost, None for local files.
    """

    name: str
    model: ModelMap | None
    fault: str | None = None
    traffic: Traffic | None = None


@dataclass(frozen=True)
class Survey:
    """The models of a place; `traffic` is what reading all of them cost, None for local files."""

    place: str
    models: tuple[Surveyed, ...]
    traffic: Traffic | None = None


def survey(targets: Sequence[str], pattern: str) -> Survey:
    """Read the headers of one repository OWNER/NAME[@REVISION], or of local files and folders.

    `pattern` is a glob on the names of GGUF files in a repository or folder; of a split model any
    shard's name will do. What exists here is taken for local. A model that cannot be read is
    reported in its place; raises ColdbenchError where there is none that can, or where the
    repository cannot be listed.
    """
    if len(targets) == 1 and not _is_local(targets[0]):
        found = _of_repository(_repository(targets[0]), pattern)
    else:
        found = _of_files([expanded(target) for target in targets], pattern)
    if not found.models:
        raise ColdbenchError(f"{found.place}: no GGUF file's name matches {pattern}")
    if all(model.fault for model in found.models):
        raise ColdbenchError("\n".join(dict.fromkeys(str(model.fault) for model in found.models)))
    return found


def _is_local(target: str) -> bool:
    return target.startswith((".", "/", "~")) or target.endswith(".gguf") or Path(target).exists()


def _repository(target: str) -> HubFiles:
    name, at, revision = target.partition("@")
    try:
        return HubFiles(repo=name, pattern="*.gguf", revision=revision if at else "main")
    except ValidationError:
        raise ColdbenchError(
            f"{target}: is neither a file or folder here nor a repository OWNER/NAME[@REVISION]"
        ) from None


def _of_repository(asked: HubFiles, pattern: str) -> Survey:
    with Repository(asked) as repository, ThreadPoolExecutor(CONNECTIONS) as pool:
        folder = Path(asked.repo)

        def read(name: str) -> Surveyed:
            return _surveyed(
                name, partial(read_model_at, repository, folder / name), repository.traffic
            )

        names = _models(repository.names, pattern)
        # The first by itself: the others then know the length of its vocabulary.
        models = [read(name) for name in names[:1]]
        models += pool.map(read, names[1:])
        return Survey(
            f"{asked.repo} at {repository.commit}", tuple(models), repository.total_traffic()
        )


def _of_files(targets: Sequence[Path], pattern: str) -> Survey:
    models: dict[Path, str] = {}
    for target in targets:
        if target.is_dir():
            inside = (path.relative_to(target) for path in target.rglob("*.gguf"))
            models |= {target / name: name for name in _models(sorted(map(str, inside)), pattern)}
        else:
            first = first_shard(target)
            path = first if first.exists() else target
            models[path] = str(path)
    place = str(targets[0]) if len(targets) == 1 else f"{len(targets)} files or folders"
    found = (_surveyed(name, partial(read_model, path)) for path, name in models.items())
    return Survey(place, tuple(found))


def _models(names: Iterable[str], pattern: str) -> list[str]:
    """Return the GGUF files that match, the first shard in place of each of a split model."""
    files = [name for name in names if name.endswith(".gguf") and fnmatchcase(name, pattern)]
    return list(dict.fromkeys(str(first_shard(Path(name))) for name in files))


def _surveyed(
    name: str,
    read: Callable[[], ModelMap],
    traffic: Callable[[Sequence[Path]], Traffic] | None = None,
) -> Surveyed:
    try:
        model = read()
    except ColdbenchError as error:
        return Surveyed(name, None, str(error))
    cost = None if traffic is None else traffic([file.path for file in model.files])
    return Surveyed(name, model, traffic=cost)
