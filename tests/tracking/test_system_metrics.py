"""Samples of the machine: written while the search runs, read once each, whatever a killed process left."""

import threading
import time
from pathlib import Path

from platform.tracking.system_metrics import SAMPLES, Samples, sampled


def test_what_is_sampled_is_read_once(tmp_path: Path) -> None:
    samples = Samples(tmp_path, after_ms=0)
    assert samples.read() == []
    file, until_s = tmp_path / SAMPLES, time.monotonic() + 300
    with sampled(tmp_path, every_s=0.1):
        while not file.exists() or file.read_bytes().count(b"\n") < 2:
            assert time.monotonic() < until_s
            time.sleep(0.05)
    for thread in threading.enumerate():  # a slow disk may keep it for longer than a search waits
        if thread.name == "system-metrics":
            thread.join()
    rows = samples.read()
    assert len(rows) >= 2 and [number for number, _, _ in rows] == list(range(len(rows)))
    assert all(0 <= metrics["system/cpu_utilization_percentage"] <= 100 for _, _, metrics in rows)
    assert all(metrics["system/system_memory_usage_megabytes"] > 100 for _, _, metrics in rows)
    assert abs(rows[-1][1] / 1000 - time.time()) < 60
    assert samples.read() == []
    later = Samples(tmp_path, after_ms=rows[0][1])
    assert [number for number, _, _ in later.read()] == [number for number, _, _ in rows[1:]]


def test_half_a_line_is_waited_for_and_a_broken_one_passed_over(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES
    path.write_text('{"at_ms": 1, "a": 1.0}\n{"at_ms": 2, "a"')
    samples = Samples(tmp_path, after_ms=0)
    assert samples.read() == [(0, 1, {"a": 1.0})]
    with path.open("a") as file:
        file.write('{"at_ms": 3, "a": 2.0}\n{"at_ms": 4, "a": 3.0}\n')
    assert samples.read() == [(2, 4, {"a": 3.0})]
