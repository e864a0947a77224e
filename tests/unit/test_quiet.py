"""Other work on the machine is told from a run's own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure.pagecache import PAGE_BYTES
from coldbench.measure.quiet import disturbance, disturbed, judged, wait_until_quiet
from coldbench.records import Exit, Io, Memory, Run
from coldbench.study.quiet import QuietLimits, QuietSettings

from .test_journal import planned, record

LIMITS = QuietLimits()
BEFORE = {
    "monotonic_s": 100.0,
    "busy_s": 50.0,
    "stolen_s": 1.0,
    "own_cpu_s": 5.0,
    "reclaim_s": 2.0,
    "disk_read_bytes": 10**9,
    "disk_written_bytes": 10**8,
    "swapped_in_pages": 70,
    "throttle_events": 3,
}


def after(**moved: float) -> dict[str, float]:
    """Return the state 10 s later: what moved beside the clock."""
    return {name: value + moved.get(name, 0) for name, value in BEFORE.items()} | {
        "monotonic_s": 110.0
    }


def measured(after: dict[str, Any], **given: Any) -> dict[str, float | None]:
    own = {"wall_s": 10.0, "own_cpu_s": 0.0, "own_read_bytes": 0, "cpus": 4} | given
    return disturbance(BEFORE, after, **own)


def test_what_the_run_used_is_not_others() -> None:
    found = measured(
        after(busy_s=32, reclaim_s=2, stolen_s=0.48, disk_read_bytes=2 * 10**9,
              disk_written_bytes=4 * 2**20),
        own_cpu_s=28.0,
        own_read_bytes=2 * 10**9,
    )  # fmt: skip
    # Of 40 s: 32 busy, 28 own and 2 of kswapd; two ticks on each of four CPUs are no one's.
    assert found["other_cpu"] == pytest.approx((2 - 0.08) / 40)
    assert found["stolen"] == pytest.approx((0.48 - 0.08) / 40)
    assert found["other_disk"] == found["swapped_in"] == found["throttled"] == 0


def test_what_others_did_is_measured_in_shares_and_bytes() -> None:
    found = measured(
        after(busy_s=20.08, disk_read_bytes=104 * 2**20, disk_written_bytes=100 * 2**20,
              swapped_in_pages=512, throttle_events=2),
        own_read_bytes=50 * 2**20,
    )  # fmt: skip
    assert found == {
        "other_cpu": pytest.approx(0.5),
        "stolen": 0,
        "other_disk": 15 * 2**20,
        "swapped_in": 512 * PAGE_BYTES,
        "throttled": 2,
    }
    assert disturbed(found, LIMITS) == (
        "other work took 50% of the CPUs (limit 5.0%); "
        "other work moved 15.0 MiB/s on the model's disk (limit 10.0 MiB/s); "
        "2.0 MiB were swapped in (limit 1.0 MiB); 2 events of thermal throttling (limit 0)"
    )


def test_ticks_are_too_coarse_to_blame_a_short_run() -> None:
    found = measured(after(busy_s=0.0399, stolen_s=0.0399), wall_s=0.02, cpus=2)
    assert found["other_cpu"] == found["stolen"] == 0


def test_what_is_not_known_is_none_and_disturbs_nothing() -> None:
    unknown = dict.fromkeys(BEFORE)
    own: dict[str, Any] = {"wall_s": None, "own_cpu_s": None, "own_read_bytes": None, "cpus": None}
    for found in (
        disturbance(unknown, unknown, wall_s=1.0, own_cpu_s=1.0, own_read_bytes=0, cpus=2),
        disturbance({}, {}, wall_s=1.0, own_cpu_s=1.0, own_read_bytes=0, cpus=2),
        disturbance(BEFORE, {}, **own),
    ):
        assert set(found.values()) == {None}
        assert disturbed(found, LIMITS) == ""
    busy = after(busy_s=40, stolen_s=9, disk_read_bytes=10**10)
    found = disturbance(BEFORE, busy, **own)
    assert found["other_cpu"] is found["stolen"] is found["other_disk"] is None
    # No kswapd to be seen: nothing is subtracted.
    assert measured(after(busy_s=4.08) | {"reclaim_s": None})["other_cpu"] == pytest.approx(0.1)


def test_a_limit_is_still_allowed() -> None:
    for name in ("other_cpu", "stolen", "other_disk", "swapped_in", "throttled"):
        limit = getattr(LIMITS, name)
        assert disturbed({name: limit}, LIMITS) == ""
        assert disturbed({name: limit * 1.01 + 1e-9}, LIMITS) != ""


def run_beside(**fields: Any) -> Run:
    """Return an ok run of 10 s that used 10 s of CPU while the machine's four were busy for 30."""
    machine = {"before": BEFORE, "after": after(busy_s=30, own_cpu_s=10, swapped_in_pages=10**6)}
    values: dict[str, Any] = {
        "host": {"logical_cpus": 4},
        "machine": machine,
        "metrics": {"prompt_tps": 12.5},
        "notes": ["a note"],
        "exit": Exit(ended="exit", code=0, wall_s=9.9),
        "io": Io(read_bytes=0),
        "memory": Memory(swap_at_peak_bytes=4096),
    }
    return record(planned(1), **{**values, **fields})


def test_a_disturbed_run_keeps_its_figures_and_gives_none() -> None:
    run = judged(run_beside(), QuietSettings())
    assert run.status == "disturbed"
    assert run.reason == "other work took 50% of the CPUs (limit 5.0%)"
    assert run.metrics == {"prompt_tps": 12.5}
    assert run.notes == ["a note"]
    assert run.disturbance["other_cpu"] == pytest.approx(0.498)
    assert run.disturbance["swapped_in"] is None, "the engine itself was swapped"
    swapped = judged(run_beside(memory=Memory(swap_at_peak_bytes=0)), QuietSettings())
    assert swapped.disturbance["swapped_in"] == 10**6 * PAGE_BYTES
    assert Run.model_validate_json(run.model_dump_json(by_alias=True)) == run


def test_a_run_that_only_warns_stays_ok_with_a_note() -> None:
    run = judged(run_beside(), QuietSettings(quiet="warn"))
    assert (run.status, run.reason) == ("ok", "")
    assert run.notes == ["a note", "disturbed: other work took 50% of the CPUs (limit 5.0%)"]
    assert run.disturbance["other_cpu"] == pytest.approx(0.498)


def test_other_outcomes_stay_what_they_are() -> None:
    for quiet in (QuietSettings(), QuietSettings(quiet="warn")):
        failed = judged(run_beside(status="failed", reason="exit status 1"), quiet)
        assert (failed.status, failed.reason, failed.notes) == (
            "failed", "exit status 1", ["a note"]
        )  # fmt: skip
        assert failed.disturbance["other_cpu"] == pytest.approx(0.498)
        refused = run_beside(status="refused", machine={})
        assert judged(refused, quiet) == refused


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_a_machine_that_is_never_quiet_is_a_clear_stop(
    burner: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    limits = QuietLimits.model_validate({"wait": "2s", "other_cpu": "0.5%"})
    with pytest.raises(ColdbenchError) as stop:
        wait_until_quiet(tmp_path, limits, "toy")
    told = str(stop.value)
    assert told.startswith("the machine was not quiet within 2 s: other work took ")
    assert f"(pid {burner.pid}, " in told
    assert told.endswith("; end them, or measure with a mark on every row: --config quiet=warn")


def test_what_ends_in_time_is_waited_for(tmp_path: Path) -> None:
    limits = QuietLimits.model_validate({
        "wait": "30s", "other_cpu": "80%", "stolen": "99%", "other_disk": "1TiB",
        "swapped_in": "1TiB", "throttled": 10**9,
    })  # fmt: skip
    try:
        wait_until_quiet(tmp_path, limits, "test")
    except ColdbenchError as error:
        pytest.skip(str(error))
    burn = f"import time\nwhile time.time() < {time.time() + 3}: pass"
    burners = [
        subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    begun = time.monotonic()
    wait_until_quiet(tmp_path, limits, "toy")
    assert 2 < time.monotonic() - begun < 60
    assert [burner.wait() for burner in burners] == [0] * len(burners)
