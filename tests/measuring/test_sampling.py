# pyright: reportPrivateUsage=false
"""NVML's figures of a device while a window is timed, from readings made by hand: tests run without a GPU."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.measuring.sampling import NvmlSampler, Sampled

Reading = tuple[int, int, int, int]
"""Utilization in %, clock in MHz, power in mW, and NVML's bits for what lowers the clock."""


class Nvml:
    """A stand-in for NVML that gives the readings one after another, then fails as a driver does that is gone."""

    NVML_CLOCK_SM = 1

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = iter(readings)
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


def sampled(*readings: Reading) -> Sampled | None:
    sampler = NvmlSampler(interval_s=0.001)
    sampler._nvml, sampler._handle = Nvml(readings), object()
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
