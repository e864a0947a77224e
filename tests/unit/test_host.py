import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure import host
from coldbench.measure.host import host_facts, host_state, read_ahead_file
from coldbench.measure.pagecache import FileSystem


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


def test_a_file_system_on_no_one_device_has_its_own_read_ahead_or_none_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux shows a btrfs; its subvolume's number, 0:N, is nowhere in sysfs."""
    system, model = tmp_path / "sys", tmp_path / "model"
    model.touch()
    status = model.stat()
    disk_tree(system, os.makedev(259, 1), partition=False)
    bdi = system / "devices/virtual/bdi/btrfs-2"
    bdi.mkdir(parents=True)
    (bdi / "read_ahead_kb").write_text("4096\n")
    volume = system / "fs/btrfs/0b7c"
    (volume / "devices/nvme0n1").mkdir(parents=True)
    (volume / "bdi").symlink_to(bdi)
    monkeypatch.setattr(host, "_SYS", system)
    of_volume = os.stat_result((*status[:2], os.makedev(0, 61), *status[3:]))
    real = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda self, **how: of_volume if self == model else real(self, **how)
    )
    for kind, device, ahead in (
        ("btrfs", "/dev/nvme0n1", volume / "bdi/read_ahead_kb"),
        ("btrfs", "/dev/nvme1n1", None),
        ("zfs", "pool/models", None),
    ):
        found = FileSystem(kind, device, "/")
        monkeypatch.setattr(host, "filesystem", lambda _, found=found: found)
        assert read_ahead_file(model) == ahead


def test_what_the_machine_does_not_show_is_none_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SYS", "_PROC", "_CPU"):
        monkeypatch.setattr(host, name, tmp_path / "nothing")
    facts = host_facts(tmp_path)
    for name in ("governor", "transparent_hugepage", "disk", "disk_read_ahead_kb",
                 "disk_rotational", "hypervisor"):  # fmt: skip
        assert facts[name] is None
    monkeypatch.setattr(host, "_kswapd", lambda: ())
    state = host_state(tmp_path)
    assert state.pop("load") is not None
    assert state.pop("monotonic_s") is not None
    assert state.pop("own_cpu_s") > 0
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
    (tmp_path / "stat").write_text(
        "cpu  100 20 30 4000 500 6 7 80 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\nctxt 1\n"
    )
    (tmp_path / "loadavg").write_text("0.50 0.40 0.30 3/117 26304\n")
    (tmp_path / "66").mkdir()
    (tmp_path / "66/comm").write_text("kswapd0\n")
    (tmp_path / "66/stat").write_text("66 (kswapd0) S 2 0 0 0 -1 1 0 0 0 0 0 250 0 0 20 0\n")
    monkeypatch.setattr(host, "_PROC", tmp_path)
    host._kswapd.cache_clear()
    state = host_state()
    host._kswapd.cache_clear()
    ticks = os.sysconf("SC_CLK_TCK")
    assert state["busy_s"] == 150 / ticks
    assert state["stolen_s"] == 80 / ticks
    assert state["reclaim_s"] == 250 / ticks
    assert state["running"] == 3
    assert state["disk_read_bytes"] is None
    assert state["pressure"]["io"] == {
        "some_avg10": 1.5, "some_total_us": 1234, "full_avg10": 0.25, "full_total_us": 99
    }  # fmt: skip
    assert state["memory_free_bytes"] == 10240
    assert state["memory_available_bytes"] == 20480
    assert state["swap_used_bytes"] == 40960
    assert (state["swapped_in_pages"], state["swapped_out_pages"]) == (7, 0)


def test_state_has_what_went_through_the_models_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_tree(tmp_path / "sys", tmp_path.stat().st_dev, partition=True)
    (disk / "stat").write_text("  11 22 2048 33 44 55 8 66 0 77 88\n")
    monkeypatch.setattr(host, "_SYS", tmp_path / "sys")
    state = host_state(tmp_path)
    assert (state["disk_read_bytes"], state["disk_written_bytes"]) == (2**20, 4096)


def test_own_time_has_that_of_children_waited_for() -> None:
    before = host_state()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    after = host_state()
    assert after["monotonic_s"] - before["monotonic_s"] > 0.29
    own_s = after["own_cpu_s"] - before["own_cpu_s"]
    assert 0.3 <= own_s < 3
    # Two ticks a CPU: the kernel samples what it counts as busy.
    slack_s = 0.02 * (os.cpu_count() or 1)
    assert after["busy_s"] - before["busy_s"] >= own_s - slack_s


def test_state_of_this_machine_is_json() -> None:
    state = host_state()
    assert json.loads(json.dumps(state)) == state
    assert state["memory_available_bytes"] > 0
