import json
import os
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure import host
from coldbench.measure.host import host_facts, host_state


def test_facts_are_json_and_do_not_move(tmp_path: Path) -> None:
    facts = host_facts(tmp_path)
    assert json.loads(json.dumps(facts)) == facts == host_facts(tmp_path)
    assert facts["kernel"] == os.uname().release
    assert facts["logical_cpus"] == os.cpu_count()
    assert facts["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_facts_of_a_missing_model_name_it(tmp_path: Path) -> None:
    with pytest.raises(ColdbenchError, match=r"missing\.gguf: cannot be read"):
        host_facts(tmp_path / "missing.gguf")


def disk_tree(system: Path, number: int, *, partition: bool) -> Path:
    """Lay out sysfs as the kernel does for a disk, with the file's number on it or on a part."""
    disk = system / "devices/pci0/nvme0n1"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue/read_ahead_kb").write_text("128\n")
    (disk / "queue/rotational").write_text("0\n")
    (disk / "queue/scheduler").write_text("[none] mq-deadline\n")
    place = disk
    if partition:
        place = disk / "nvme0n1p2"
        place.mkdir()
        (place / "partition").write_text("2\n")
    (system / "dev/block").mkdir(parents=True)
    (system / f"dev/block/{os.major(number)}:{os.minor(number)}").symlink_to(place)
    return disk


@pytest.mark.parametrize("partition", [True, False])
def test_a_partition_has_the_settings_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: bool
) -> None:
    disk_tree(tmp_path / "sys", tmp_path.stat().st_dev, partition=partition)
    monkeypatch.setattr(host, "_SYS", tmp_path / "sys")
    facts = host_facts(tmp_path)
    assert facts["disk"] == "nvme0n1"
    assert facts["disk_read_ahead_kb"] == 128
    assert facts["disk_rotational"] is False
    assert facts["disk_scheduler"] == "none"


def test_a_mounts_own_read_ahead_goes_before_its_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = tmp_path.stat().st_dev
    disk_tree(tmp_path / "sys", number, partition=False)
    own = tmp_path / f"sys/class/bdi/{os.major(number)}:{os.minor(number)}"
    own.mkdir(parents=True)
    (own / "read_ahead_kb").write_text("4096\n")
    monkeypatch.setattr(host, "_SYS", tmp_path / "sys")
    assert host_facts(tmp_path)["disk_read_ahead_kb"] == 4096


def test_what_the_machine_does_not_show_is_none_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SYS", "_PROC", "_CPU"):
        monkeypatch.setattr(host, name, tmp_path / "nothing")
    facts = host_facts(tmp_path)
    for name in ("governor", "transparent_hugepage", "disk", "disk_read_ahead_kb",
                 "disk_rotational", "hypervisor"):  # fmt: skip
        assert facts[name] is None
    state = host_state()
    assert state.pop("load") is not None
    assert state.pop("pressure") == {"cpu": None, "io": None, "memory": None}
    assert set(state.values()) == {None}


def test_state_reads_the_kernels_own_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/io").write_text(
        "some avg10=1.50 avg60=0.12 avg300=5.73 total=1234\n"
        "full avg10=0.25 avg60=0.00 avg300=0.00 total=99\n"
    )
    (tmp_path / "meminfo").write_text(
        "MemFree: 10 kB\nMemAvailable:   20 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n"
    )
    (tmp_path / "vmstat").write_text("pswpin 7\npswpout 0\n")
    monkeypatch.setattr(host, "_PROC", tmp_path)
    state = host_state()
    assert state["pressure"]["io"] == {
        "some_avg10": 1.5, "some_total_us": 1234, "full_avg10": 0.25, "full_total_us": 99
    }  # fmt: skip
    assert state["memory_free_bytes"] == 10240
    assert state["memory_available_bytes"] == 20480
    assert state["swap_used_bytes"] == 40960
    assert (state["swapped_in_pages"], state["swapped_out_pages"]) == (7, 0)


def test_state_of_this_machine_is_json() -> None:
    state = host_state()
    assert json.loads(json.dumps(state)) == state
    assert state["memory_available_bytes"] > 0
