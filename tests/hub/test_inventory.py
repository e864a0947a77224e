"""What `coldbench models` says of models that are here, half here, wrong or away."""

from pathlib import Path

import pytest

from coldbench.cli import main
from coldbench.sources.inventory import take_stock
from coldbench.sources.models import prepare_model
from coldbench.study.lock import Pins
from coldbench.study.plan import Plan
from tests.unit.gguf_files import DATA

from .files import GOOD, sha256, shards
from .server import HubServer

STUDY = """\
models:
  made: {{source: {{standin: {{architecture: llama, body: 16MiB}}}}}}
  split: {{source: {{hf: {{repo: someone/toy, pattern: "big*"}}}}}}
  web: {{source: {{url: "{url}", sha256: {sha256}}}}}
  mine: {{source: {{path: "{path}"}}}}
  declared: {{source: {{path: "{path}", sha256: {sha256}}}}}
  absent: {{source: {{path: "{path}.not"}}}}
builds: {{new: {{source: {{binaries: bin}}}}}}
workloads: {{run: {{driver: llama-bench}}}}
arms: [{{name: one, build: new}}]
blocks: {{warm: 1}}
"""


@pytest.fixture
def study(server: HubServer, tmp_path: Path) -> Path:
    server.commit("someone/toy", shards("big/toy"))
    server.files["toy.gguf"] = GOOD
    path = tmp_path / "study.yaml"
    text = STUDY.format(
        url=server.file_url("toy.gguf"), sha256=sha256(GOOD), path=DATA / "ok_v3.gguf"
    )
    path.write_text(text)
    return path


def states(study: Path, cache: Path) -> dict[str, tuple[str, int | None]]:
    return {one.name: (one.state, one.bytes) for one in take_stock(Plan(study), cache)}


def prepare(study: Path, name: str, cache: Path) -> None:
    prepare_model(Plan(study).models[name], cache, Pins(study, "models", name))


def test_models_are_missing_present_verified_or_wrong(
    server: HubServer, study: Path, cache: Path
) -> None:
    asked = len(server.requests)
    before = states(study, cache)
    assert before["split"] == ("missing", None)
    assert before["web"] == ("missing", None)
    assert before["mine"] == ("present", len(GOOD))
    assert before["declared"] == ("present", len(GOOD))
    assert before["absent"] == ("missing", None)
    assert before["made"][0] == "missing"
    assert before["made"][1] is not None
    assert not cache.exists()
    assert len(server.requests) == asked

    for name in ("made", "split", "web", "declared"):
        prepare(study, name, cache)
    after = states(study, cache)
    size = sum(map(len, shards("big/toy").values()))
    assert after == before | {
        "made": ("verified", before["made"][1]),
        "split": ("verified", size),
        "web": ("verified", len(GOOD)),
        "declared": ("verified", len(GOOD)),
    }


def test_half_a_model_says_what_it_lacks(
    study: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDBENCH_CACHE", str(cache))
    prepare(study, "split", cache)
    prepare(study, "web", cache)
    stocked = {one.name: one for one in take_stock(Plan(study), cache)}
    (web,) = cache.glob("models/*/toy.gguf")
    web.write_bytes(b"GGUF")
    wrong = {one.name: one for one in take_stock(Plan(study), cache)}["web"]
    assert (wrong.state, wrong.note) == ("present", "")  # only its hash can tell; it is made anew
    assert stocked["split"].files == 3
    blobs = cache.parent / "hf" / "hub" / "models--someone--toy" / "blobs"
    digest = sha256(shards("big/toy")["big/toy-00002-of-00003.gguf"])
    part = blobs / f"{digest}.coldbench.incomplete"
    (blobs / digest).rename(part)
    half = {one.name: one for one in take_stock(Plan(study), cache)}["split"]
    assert half.state == "missing"
    assert half.note == "2 of 3 files are here, 0.0 MiB have arrived"
    (blobs / digest).write_bytes(part.read_bytes() + b"x")
    wrong = {one.name: one for one in take_stock(Plan(study), cache)}["split"]
    assert wrong.state == "wrong"
    assert "must have" in wrong.note
    main(["models", str(study)])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["split"].split()[1] == "wrong"
    assert lines["absent"].split()[1:5] == ["missing", "n/a", "n/a", "n/a"]
    assert lines["mine"].split()[1:4] == ["present", "540,928", "0.5"]
