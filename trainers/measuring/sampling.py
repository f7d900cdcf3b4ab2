"""Samples a device while a window is timed: how busy it is, its clock and power, and what lowers its clock."""

import dataclasses
import statistics
import threading
import time
from typing import Any, Protocol

import torch

_HELD_BACK = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""NVML's bits for what lowers a clock (nvmlClocksEventReasons), without an idle device and clocks set by a user."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One device over one window: means of the samples. None is what the device does not report."""

    utilization_pct: float
    """Share of time in which the device was busy."""
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    held_back: tuple[str, ...] = ()
    """Reasons that lowered the clock at any sample, sorted."""


class Sampler(Protocol):
    """Samples this worker's device between `start` and `stop`."""

    def start(self) -> None:
        """Begins sampling."""
        ...

    def stop(self) -> Sampled | None:
        """Ends sampling; None where nothing could be read."""
        ...


class NvmlSampler:
    """NVML's figures of this worker's GPU, read by a thread every `interval_s`."""

    def __init__(self, interval_s: float = 0.1) -> None:
        self._interval_s = interval_s
        self._samples: list[tuple[int, int, int, int]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._nvml = pynvml
        except Exception:  # no NVML, no driver, a container that hides it: a missing figure, never a lost rung
            self._handle = None

    def start(self) -> None:
        if self._handle is None:
            return
        self._samples, self._stop = [], threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        nvml, handle = self._nvml, self._handle
        while not self._stop.wait(self._interval_s):
            try:
                self._samples.append(
                    (
                        int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                        int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                        int(nvml.nvmlDeviceGetPowerUsage(handle)),
                        int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
                    )
                )
            except Exception:  # see above
                return

    def stop(self) -> Sampled | None:
        if self._thread is None:
            return None
        self._stop.set()
        self._thread.join()
        self._thread = None
        if not self._samples:
            return None
        busy, clock, milliwatts, bits = zip(*self._samples, strict=True)
        return Sampled(
            utilization_pct=statistics.fmean(busy),
            sm_clock_mhz=statistics.fmean(clock),
            power_w=statistics.fmean(milliwatts) / 1e3,
            held_back=tuple(sorted(name for bit, name in _HELD_BACK.items() if any(bit & each for each in bits))),
        )


class CpuSampler:
    """CPU seconds of this process over wall seconds, a thread of torch's counting as one device."""

    def __init__(self) -> None:
        self._cpu_s = 0.0
        self._wall_s = 0.0

    def start(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def stop(self) -> Sampled | None:
        wall_s = time.perf_counter() - self._wall_s
        if wall_s <= 0:
            return None
        busy = (time.process_time() - self._cpu_s) / wall_s / torch.get_num_threads()
        return Sampled(utilization_pct=min(100.0, 100.0 * busy))
