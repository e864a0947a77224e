"""What the machine can certify, by hand: doctor, evict, residency."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coldbench.cli import main
from coldbench.common.errors import ColdbenchError
from coldbench.measure.certificate import make_cold, never_cold
from coldbench.measure.doctor import Checkup, Finding, examine
from coldbench.measure.pagecache import PAGE_BYTES, evict, filesystem, resident_bytes
from coldbench.measure.residency import model_files, resident_files, resident_tensors
from coldbench.publish import cachetext

DATA = Path(__file__).parents[1] / "data" / "gguf"
SHARED = Path("/dev/shm")
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if never_cold(filesystem(tmp_path)):
        pytest.skip("the temporary folder is not on a disk: set TMPDIR to one that is")
    return tmp_path


def by_name(found: Checkup) -> dict[str, Finding]:
    return {finding.name: finding for finding in found.findings}


def test_doctor_certifies_a_folder_on_a_disk_and_leaves_nothing_there(folder: Path) -> None:
    found = examine(folder)
    assert found.cold
    findings = by_name(found)
    assert len(findings) == len(found.findings)
    assert set(findings) == {
        *("user", "file system", "cachestat", "mincore", "cold", "physical reads"),
        *("memory budget", "second counter", "pressure (PSI)", "swap", "huge pages (THP)"),
        *("governor", "turbo", "disk", "read_ahead_kb", "container", "hypervisor"),
        "memory locking",
    }
    assert findings["file system"].value == filesystem(folder).type
    assert findings["cold"].verdict == findings["mincore"].verdict == "ok"
    assert "positive control" in findings["cold"].value
    assert all(finding.mend for finding in found.findings if finding.verdict != "ok")
    assert not any(finding.mend for finding in found.findings if finding.verdict == "ok")
    assert list(folder.iterdir()) == []
    # The mend of a missing budget must be no guess: it says why the kernel refused one.
    budget = findings["memory budget"]
    assert budget.verdict == "ok" or budget.mend.startswith("budget: ")


def test_doctor_refuses_a_memory_file_system_and_exits_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not SHARED.is_dir() or filesystem(SHARED).type != "tmpfs" or not os.access(SHARED, os.W_OK):
        pytest.skip("/dev/shm is no tmpfs that may be written")
    found = examine(SHARED)
    assert not found.cold
    assert by_name(found)["file system"].verdict == "no"
    assert "move it to a disk" in by_name(found)["file system"].mend
    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(SHARED)])
    assert ended.value.code == 1
    assert capsys.readouterr().out.rstrip().endswith("/dev/shm: cold cannot be certified here")


def test_doctor_says_what_is_wrong_with_a_model(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("to become another user needs root")
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from coldbench.measure.doctor import examine\n"
        f"os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})\n"
        "found = examine(Path(sys.argv[1]))\n"
        "named = {f.name: f for f in found.findings}\n"
        "print(found.cold, named['model'].verdict, named['model'].mend)\n"
        "print(named['user'].value, '|', named['cold'].verdict)\n"
    )
    with tempfile.TemporaryDirectory(dir=folder.parents[2]) as name:  # tmp_path is root's alone
        place = Path(name)
        place.chmod(0o777)
        model = Path(shutil.copy(DATA / "ok_v3.gguf", place))
        model.chmod(0o644)
        command = [sys.executable, "-c", script, str(model)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        first, second = done.stdout.splitlines()
        assert first.startswith(f"False no {model}: cannot be certified cold: no write permission")
        assert second == f"uid {NOBODY}, not root | ok"
        place.chmod(0o755)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[1] == f"uid {NOBODY}, not root | no"
        assert by_name(examine(model))["model"].verdict == "ok"


def test_doctor_wants_a_place_that_exists(folder: Path) -> None:
    with pytest.raises(ColdbenchError, match=r"absent: no such file or folder"):
        examine(folder / "absent")


def test_a_table_names_every_finding_and_its_mend() -> None:
    found = Checkup(Path("/models"), False, [Finding("swap", "8 MiB", "limited", "swapoff -a")])
    *_, row, _, last = cachetext.checkup(found).splitlines()
    assert row.split() == ["swap", "8", "MiB", "limited", "swapoff", "-a"]
    assert last == "/models: cold cannot be certified here"


def words(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return line.split()


def test_evict_takes_all_shards_and_residency_shows_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [Path(shutil.copy(shard, folder)) for shard in sorted((DATA / "split_ok").iterdir())]
    assert model_files(shards[0]) == shards
    assert [share.resident for share in resident_files(shards[0])] == [262400, 278720]
    main(["residency", str(shards[0])])
    assert words(capsys.readouterr().out, "all") == ["all", "541,120", "541,120", "100.0%"]
    main(["evict", str(shards[0])])
    row = words(capsys.readouterr().out, shards[1].name)
    assert row[1] == row[4] == "278,720"
    assert row[5:] == ["0", "seen,", "evicted"]
    # Not even the headers, which had to be read to find the shards and tensors.
    assert [share.resident for share in resident_files(shards[0])] == [0, 0]
    assert [share.resident for share in resident_tensors(shards[0])] == [0, 0]
    assert [resident_bytes(shard) for shard in shards] == [0, 0]
    with pytest.raises(SystemExit):
        main(["evict", str(shards[1])])
    assert "use shard 1" in capsys.readouterr().err


def test_residency_by_tensor_is_that_of_its_bytes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copy(DATA / "ok_v3.gguf", folder))
    token, table = resident_tensors(model)
    assert (token.name, token.offset, token.size) == ("token_embd.weight", 256, 262144)
    assert token.resident == token.size
    assert table.resident == table.size == 278528
    make_cold([model])
    descriptor = os.open(model, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for page in (100, 101, 120):
            os.pread(descriptor, 1, page * PAGE_BYTES)
    finally:
        os.close(descriptor)
    _, table = resident_tensors(model)
    assert table.resident == 3 * PAGE_BYTES
    main(["residency", str(model), "--tensors"])
    assert words(capsys.readouterr().out, "per_layer_token_embd.weight")[1:] == [
        *("262,400", "278,528", f"{3 * PAGE_BYTES:,}", f"{3 * PAGE_BYTES / 278528:.1%}")
    ]


def test_residency_needs_no_model_and_does_not_change_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "a file"
    file.write_bytes(b"x" * 10_000)
    evict([file])
    for _ in range(2):
        main(["residency", str(file)])
        assert words(capsys.readouterr().out, "a file")[2:] == ["10,000", "0", "0.0%"]
    with pytest.raises(SystemExit):
        main(["residency", str(file), "--tensors"])
    assert "is not a GGUF file" in capsys.readouterr().err


def test_evict_of_what_cannot_be_cold_is_one_line_and_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["evict", str(folder)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("is not a regular file; name the model's file")
