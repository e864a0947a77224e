"""Residency over time: sampled while something runs, published as a curve."""

import os
import time
from pathlib import Path

from coldbench.measure.growth import HEADER, sampled
from coldbench.measure.pagecache import evict, resident_bytes
from coldbench.records import Residency


def test_a_file_is_seen_coming_into_the_page_cache(tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(bytes(16 << 20))
    with model.open("rb") as stream:
        os.fsync(stream.fileno())
    evict([model])

    def look() -> Residency:
        whole = resident_bytes(model)
        return Residency(files={"model.bin": whole}, table_bytes=resident_bytes(model, 0, 4 << 20))

    target = tmp_path / "curve.csv"
    with sampled(0.1, look, target):
        time.sleep(0.35)
        model.read_bytes()
        time.sleep(0.35)
    header, *lines = target.read_text().splitlines()
    assert header == HEADER
    curve = [[float(value) for value in line.split(",")] for line in lines]
    times = [at for at, _, _ in curve]
    assert times == sorted(times)
    assert len(curve) >= 4
    assert curve[0][1:] == [0, 0]
    assert curve[-1][1:] == [4 << 20, 12 << 20]


def test_nothing_is_written_where_nobody_asked(tmp_path: Path) -> None:
    with sampled(None, Residency, tmp_path / "curve.csv"):
        pass
    assert [*tmp_path.iterdir()] == []
