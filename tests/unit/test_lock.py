"""The lock file: strict, committed by the user, written once."""

import os
import re
import threading
from importlib import metadata
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.study.lock import (
    LockedModel,
    LockFile,
    Pins,
    check_packages,
    lock_path,
    read_lock,
)

ENTRY = f"""\
models:
  toy:
    hf: {{repo: some/one, file: a.gguf, revision: main}}
    commit: {"0" * 40}
    files: [{{name: a.gguf, size: 1, sha256: {"1" * 64}}}]
"""


def locked(commit: str = "0" * 40, name: str = "toy.gguf") -> LockedModel:
    return LockedModel.model_validate(
        {
            "hf": {"repo": "some/one", "file": name, "revision": "main"},
            "commit": commit,
            "files": [{"name": name, "size": 10**10, "sha256": "1" * 64}],
        }
    )


def test_there_is_no_lock_at_first(tmp_path: Path) -> None:
    study = tmp_path / "my.study.yaml"
    assert lock_path(study) == tmp_path / "my.study.lock.yaml"
    assert read_lock(study) == LockFile()
    assert Pins(study, "models", "toy").read(LockedModel) is None


@pytest.mark.parametrize("commit", ["1234567890" * 4, "0123456e89" * 4, "a" * 40])
def test_what_is_written_reads_back(tmp_path: Path, commit: str) -> None:
    study = tmp_path / "toy.yaml"
    pin = locked(commit, 'it\'s "a" #1: -toy.gguf')
    Pins(study, "models", "toy").write(pin)
    assert Pins(study, "models", "toy").read(LockedModel) == pin
    text = lock_path(study).read_text()
    assert text.startswith("# Written by coldbench")
    assert os.listdir(tmp_path) == ["toy.lock.yaml"]


def test_entries_are_in_order_and_leave_each_other_alone(tmp_path: Path) -> None:
    study = tmp_path / "toy.yaml"
    names = [f"m{number}" for number in range(12)]
    jobs = [
        threading.Thread(target=Pins(study, "models", name).write, args=(locked(name=f"{name}.g"),))
        for name in reversed(names)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    models = read_lock(study).models
    assert list(models) == sorted(names)
    assert {name: pin.files[0].name for name, pin in models.items()} == {
        name: f"{name}.g" for name in names
    }
    first = lock_path(study).read_bytes()
    Pins(study, "models", "m3").write(locked(name="m3.g"))
    assert lock_path(study).read_bytes() == first


def test_a_locked_file_is_not_written(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "toy.yaml", "models", "toy", locked=True)
    with pytest.raises(ColdbenchError, match=r"toy\.lock\.yaml: models\.toy: .* locked=true"):
        pins.write(locked())
    assert not pins.path.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "toy.lock.yaml: empty"),
        ("formt: 1\n", "toy.lock.yaml:1: unknown key formt; did you mean format?"),
        ("format: 2\n", "toy.lock.yaml:1: format"),
        ("models: {toy: {commit: abc}}\n", "toy.lock.yaml:1: models.toy: the key hf is missing"),
        (ENTRY.replace("size: 1", "size: -1"), "toy.lock.yaml:5: models.toy.files.0.size"),
        (ENTRY.replace("size: 1", "size: 1e3"), "toy.lock.yaml:5: models.toy.files.0.size"),
        (
            ENTRY.replace("a.gguf, size", "../a.gguf, size"),
            "models.toy.files.0.name: must be a path",
        ),
        (ENTRY.replace("main", "1" * 40), f"has the commit {'0' * 40} for the revision {'1' * 40}"),
        ("<<<<<<< HEAD\nmodels: {}\n", "toy.lock.yaml:2: not valid YAML"),
        ("\x00\x01", "toy.lock.yaml: not valid YAML"),
    ],
)
def test_another_form_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "toy.lock.yaml").write_text(text)
    with pytest.raises(ColdbenchError) as caught:
        read_lock(tmp_path / "toy.yaml")
    message = str(caught.value)
    assert expected in message
    assert message.endswith("put the lock file back as it was committed, or delete what is wrong")
    assert "\n" not in message


def test_a_folder_in_the_locks_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "toy.lock.yaml").mkdir()
    with pytest.raises(ColdbenchError, match=r"toy\.lock\.yaml: cannot be read: Is a directory"):
        read_lock(tmp_path / "toy.yaml")


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "absent" / "toy.yaml", "models", "toy")
    with pytest.raises(ColdbenchError, match=r"toy\.lock\.yaml: cannot be written"):
        pins.write(locked())


def test_the_lock_says_which_packages_wrote_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = tmp_path / "toy.yaml"
    check_packages(study, locked=True)
    Pins(study, "models", "toy").write(locked())
    here = metadata.version("numpy")
    assert read_lock(study).packages["numpy"] == here
    check_packages(study, locked=True)
    text = lock_path(study).read_text()
    lock_path(study).write_text(text.replace(f"numpy: {here}", "numpy: 0.1"))
    told = f"{lock_path(study)}: packages: numpy is {here}, not 0.1"
    with pytest.raises(ColdbenchError, match=f"^{re.escape(told)}; locked=true"):
        check_packages(study, locked=True)
    assert caplog.messages == []
    check_packages(study, locked=False)
    assert caplog.messages == [told]
    Pins(study, "models", "other").write(locked())
    assert read_lock(study).packages["numpy"] == "0.1"
