"""The load of a node beside the trial: the arithmetic over ranks and nodes, and the counters of this machine."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from trainers.measuring.host_load import HostSampled, HostSampler, host_fields


def sample(node: str = "a", **fields: Any) -> HostSampled:
    """Returns a window of 2 s on four processors, half of which one rank's process kept busy."""
    defaults: dict[str, Any] = {
        "wall_s": 2.0,
        "processors": 4,
        "busy_s": 4.0,
        "process_s": 4.0,
        "steal_s": 0.0,
        "load_average": 2.0,
        "clock_mhz": 2500.0,
    }
    return HostSampled(node=node, **{**defaults, **fields})


def test_the_ranks_of_a_node_are_the_trial_s_and_the_rest_is_others() -> None:
    two_ranks = (sample(busy_s=6.0, process_s=2.0), sample(busy_s=6.0, process_s=2.0))
    fields = host_fields([two_ranks, (sample(), None)])
    assert fields["others_busy_pct"] == (pytest.approx(25.0), 0.0)
    assert fields["load_average"] == 2.0 and fields["cpu_clock_mhz"] == (2500.0, 2500.0)


def test_of_several_nodes_the_worst_one_counts() -> None:
    other = sample("b", busy_s=8.0, steal_s=0.8, clock_mhz=1200.0, load_average=9.0)
    fields = host_fields([(sample(), other)])
    assert fields["others_busy_pct"] == (pytest.approx(50.0),) and fields["steal_pct"] == (pytest.approx(10.0),)
    assert fields["cpu_clock_mhz"] == (1200.0,) and fields["load_average"] == 9.0


def test_what_cannot_be_read_is_left_out() -> None:
    assert host_fields([]) == {} and host_fields([(None, None)]) == {}
    assert host_fields([(sample(clock_mhz=None),)])["cpu_clock_mhz"] == ()


def test_counters_are_read_of_the_processors_that_this_process_may_use(tmp_path: Path) -> None:
    ours = min(os.sched_getaffinity(0))
    sampler = HostSampler(tmp_path)
    sampler.start()
    assert sampler.stop() is None, "no such file"
    ticks = os.sysconf("SC_CLK_TCK")

    def write(seconds: int) -> None:
        counts = f"{seconds * ticks} 0 0 7 7 0 0 {seconds * ticks // 2} 0 0"
        (tmp_path / "stat").write_text(f"cpu 9 9 9 9 9 9 9 9 9 9\ncpu{ours} {counts}\ncpu4095 {counts}\nintr 1\n")

    write(10)
    sampler.start()
    write(12)
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2000.0\ncpu MHz\t\t: 3000.0\n")
    sample = sampler.stop()
    assert sample is not None
    assert (sample.busy_s, sample.steal_s, sample.clock_mhz) == (2.0, 1.0, 2500.0)


def test_the_work_of_this_process_is_seen_on_this_machine() -> None:
    sampler = HostSampler()
    sampler.start()
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s:
        pass
    sample = sampler.stop()
    assert sample is not None and sample.processors == len(os.sched_getaffinity(0))
    assert sample.process_s >= 0.3 and sample.busy_s >= 0.2, "the counters have steps of 10 ms"
