"""Samples a device while a window is timed: utilisation, clock, power and the reasons of a lowered clock; afterwards
the memory that other processes hold.
"""

import dataclasses
import os
import statistics
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch

from trainers.host.failures import GIB

_HELD_BACK = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""NVML's bits for reasons that lower a clock (nvmlClocksEventReasons), except an idle device and user settings."""
_OUTSIDE_GIB = 8.0
"""GiB that a rank may hold outside torch's allocator (context, NCCL, libraries): 1.3 to 3.7 in 101 measurements on up
to four H100 and H200 (docs/lab/faults.csv#two-searches.2).
"""
_NO_INSTANCE = 0xFFFFFFFF
"""NVML's gpuInstanceId for processes on a GPU without MIG."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One device during a window: means of the samples; None for values that the device does not report."""

    utilization_pct: float
    """Percentage of time in which the device was busy."""
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    held_back: tuple[str, ...] = ()
    """Reasons that lowered the clock in any sample, sorted."""
    others_gib: float | None = None
    """GiB of the device held by other processes after the window; see `others_gib`."""


class Sampler(Protocol):
    """Samples this worker's device between `start` and `stop`."""

    def start(self) -> None: ...

    def stop(self) -> Sampled | None:
        """Returns the samples since `start`; None if nothing could be read."""
        ...

    def others_gib(self) -> float | None:
        """Returns the GiB of the device that other processes hold now; None if unreadable."""
        ...


class NvmlSampler:
    """Reads NVML's values for this worker's GPU every `interval_s` seconds, in a thread."""

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
        except Exception:  # NVML or the driver may be missing or hidden in a container; only the samples are lost
            self._handle = None

    def pci_address(self) -> str:
        """Returns the device's PCI address in the kernel's form, such as "0000:19:00.0"; "" if unreadable."""
        try:
            bus = self._nvml.nvmlDeviceGetPciInfo(self._handle).busId
        except Exception:  # see above
            return ""
        domain, _, place = (bus if isinstance(bus, str) else bus.decode()).lower().partition(":")
        return f"{domain[-4:]}:{place}"

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
            held_back=tuple(sorted(name for bit, name in _HELD_BACK.items() if any(bit & mask for mask in bits))),
            others_gib=self.others_gib(),
        )

    def others_gib(self) -> float | None:
        if self._handle is None:
            return None
        try:
            listed: list[Any] = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            if any(getattr(process, "gpuInstanceId", _NO_INSTANCE) != _NO_INSTANCE for process in listed):
                listed = []  # under MIG the list covers the whole GPU, of which this process has a part
            held = {process.pid: process.usedGpuMemory and process.usedGpuMemory / GIB for process in listed}
            free, total = torch.cuda.mem_get_info()
            return others_gib(
                held,
                own_pid=os.getpid(),
                siblings=[pid for pid in held if _is_sibling(pid)],
                used_gib=(total - free) / GIB,
                reserved_gib=torch.cuda.memory_reserved() / GIB,
            )
        except Exception:  # see above
            return None


def others_gib(
    held: Mapping[int, float | None],
    *,
    own_pid: int,
    siblings: Collection[int],
    used_gib: float,
    reserved_gib: float,
) -> float:
    """Returns the GiB of a GPU that processes outside the trial hold; 0 if there is no sign of any.

    `held` has the GiB of each process that NVML lists on the GPU, None if unknown. `own_pid` is this process,
    `siblings` are listed processes started by the same Ray. `used_gib` is held by all processes, `reserved_gib` by
    torch's allocator in this one.

    In a container with its own pids, NVML may list no process, only the container's, or pids without meaning. Then
    memory used beyond this process's share counts: a lower bound, as up to `_OUTSIDE_GIB` are attributed to this
    process.
    """
    own_gib = max(reserved_gib, held.get(own_pid) or 0.0)
    unnamed_gib = max(0.0, used_gib - own_gib - _OUTSIDE_GIB)
    if own_pid not in held:
        return unnamed_gib
    others = [gib for pid, gib in held.items() if pid != own_pid and pid not in siblings]
    if None in others:
        return used_gib - reserved_gib  # an upper bound: includes this process's context
    return max(unnamed_gib, sum(gib for gib in others if gib is not None))


def _is_sibling(pid: int) -> bool:
    """Returns whether the same Ray started the process: another rank may use every GPU that it sees."""
    import psutil

    try:
        return psutil.Process(pid).ppid() == os.getppid()
    except psutil.Error:  # the process ended, or has another pid namespace
        return False


class CpuSampler:
    """Measures CPU seconds of this process over wall seconds x torch's threads, in per cent."""

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

    def others_gib(self) -> float | None:
        return None
