# pyright: reportPrivateUsage=false
"""NVML's figures of a device while a window is timed, from readings made by hand: tests run without a GPU."""

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers.host.failures import GIB
from trainers.measuring import sampling
from trainers.measuring.sampling import NvmlSampler, Sampled, others_gib

Reading = tuple[int, int, int, int]
"""Utilization in %, clock in MHz, power in mW, and NVML's bits for what lowers the clock."""


class Nvml:
    """A stand-in for NVML that gives the readings one after another, then fails as a driver does that is gone."""

    NVML_CLOCK_SM = 1

    def __init__(self, readings: Sequence[Reading], processes: Sequence[Any] | None = None) -> None:
        self._readings = iter(readings)
        self._processes = processes
        self._now: Reading = (0, 0, 0, 0)

    def nvmlDeviceGetUtilizationRates(self, _: Any) -> Any:
        self._now = next(self._readings)  # the end of it ends the sampling, as any error does
        return SimpleNamespace(gpu=self._now[0])

    def nvmlDeviceGetClockInfo(self, _: Any, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return self._now[1]

    def nvmlDeviceGetPowerUsage(self, _: Any) -> int:
        return self._now[2]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: Any) -> int:
        return self._now[3]

    def nvmlDeviceGetComputeRunningProcesses(self, _: Any) -> Sequence[Any]:
        if self._processes is None:
            raise OSError("NVML does not tell")
        return self._processes


def sampled(*readings: Reading, processes: Sequence[Any] | None = None) -> Sampled | None:
    sampler = NvmlSampler(interval_s=0.001)
    sampler._nvml, sampler._handle = Nvml(readings, processes), object()
    sampler.start()
    assert sampler._thread is not None
    sampler._thread.join(600)
    return sampler.stop()


def test_a_window_has_the_means_of_its_readings_and_every_reason_that_lowered_the_clock() -> None:
    idle_and_set, power, thermal = 0x3, 0x4, 0x20  # the first two are no complaint
    sample = sampled((100, 1980, 700_000, idle_and_set), (90, 1500, 500_000, power | thermal))
    assert sample is not None
    assert (sample.utilization_pct, sample.sm_clock_mhz, sample.power_w) == (95, 1740, pytest.approx(600))
    assert sample.held_back == ("power cap", "thermal")


def test_without_readings_there_is_nothing_to_tell() -> None:
    assert sampled() is None
    assert NvmlSampler().stop() is None


def test_it_reads_more_often_than_once_a_second() -> None:
    assert 0 < NvmlSampler()._interval_s < 1


OURS, SIBLING, THEIRS = 10, 11, 99


@pytest.mark.parametrize(
    ("held", "used_gib", "expected_gib"),
    [
        ({OURS: 62.0}, 63.0, 0.0),
        ({OURS: 62.0, THEIRS: 30.0}, 93.0, 30.0),
        ({OURS: 62.0, THEIRS: 30.0, 98: 1.5}, 95.0, 31.5),
        ({OURS: 62.0, SIBLING: 0.5}, 63.5, 0.0),  # another rank that touched this rank's GPU
        ({OURS: 62.0, SIBLING: 30.0}, 93.0, 23.0),  # one that holds this much is no other rank
        ({OURS: 62.0}, 93.0, 23.0),  # the other is in another container
        ({OURS: 71.0}, 72.0, 0.0),  # this process itself has 11 GiB beside its allocator
        ({OURS: None, THEIRS: None}, 62.0, 2.0),
        ({}, 63.7, 0.0),
        ({}, 82.8, 14.8),
        ({1: 62.0, 2: 30.0}, 92.0, 24.0),  # pids of another namespace, one of which is this process's
    ],
)
def test_other_processes_are_those_that_nvml_names_or_what_is_used_beyond_a_rank_s_own(
    held: Mapping[int, float | None], used_gib: float, expected_gib: float
) -> None:
    """Checks lists of processes on a GPU where torch's allocator has reserved 60 GiB."""
    gib = others_gib(held, own_pid=OURS, siblings=[SIBLING], used_gib=used_gib, reserved_gib=60.0)
    assert gib == pytest.approx(expected_gib)


def process(pid: int, gib: float | None, **fields: Any) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else int(gib * GIB), **fields)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes up a device of 80 GiB, 40 of them used, 10 by torch's allocator."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (40 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 10 * GIB)


BUSY: Reading = (100, 1980, 700_000, 0)


@pytest.mark.usefixtures("device")
def test_after_a_window_it_notes_what_other_processes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that Ray's other processes, which have this one's parent, are none of them."""
    ours, ray_s, theirs = process(os.getpid(), 11.0), process(98, 1.0), process(99, 28.0)
    monkeypatch.setattr(sampling, "_is_sibling", lambda pid: pid == 98)
    sample = sampled(BUSY, processes=[ours, ray_s, theirs])
    assert sample is not None and sample.others_gib == 28.0
    sample = sampled(BUSY, processes=[])
    assert sample is not None and sample.others_gib == 22.0


@pytest.mark.usefixtures("device")
def test_on_a_part_of_a_gpu_the_processes_of_its_other_parts_are_no_others() -> None:
    parts = [process(os.getpid(), 11.0, gpuInstanceId=1), process(99, 60.0, gpuInstanceId=2)]
    sample = sampled(BUSY, processes=parts)
    assert sample is not None and sample.others_gib == 22.0, "of this part, 40 GiB are used and 10 reserved"
    undivided = [process(os.getpid(), 11.0, gpuInstanceId=0xFFFFFFFF), process(99, 29.0, gpuInstanceId=0xFFFFFFFF)]
    sample = sampled(BUSY, processes=undivided)
    assert sample is not None and sample.others_gib == 29.0


def test_processes_that_cannot_be_read_are_a_missing_figure_alone() -> None:
    sample = sampled(BUSY, processes=None)
    assert sample is not None and sample.others_gib is None and sample.power_w == 700
    assert NvmlSampler().others_gib() is None


def test_a_process_of_the_same_parent_is_a_sibling() -> None:
    assert sampling._is_sibling(os.getpid())
    assert not sampling._is_sibling(os.getppid()) and not sampling._is_sibling(2**22 + 1)
