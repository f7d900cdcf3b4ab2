"""What differs between a GPU and a CPU worker: clock, memory counters, memory cap."""

import ctypes
import re
import resource
import time
from pathlib import Path
from typing import Any, Protocol

import torch

from trainers.failures import GIB, asked_bytes
from trainers.measuring.ladder import HEADROOM

_LIBRARY_REFUSED = re.compile(r"out of memory|_ALLOC_FAILED")


class Clock(Protocol):
    """Marks moments in the device's own order of work."""

    def mark(self) -> None:
        """Notes a moment; does not wait for the device."""
        ...

    def finish(self) -> list[float]:
        """Waits for the device once; seconds between consecutive marks."""
        ...


class Meter(Protocol):
    """Memory of one worker's device. Sizes are in GiB, and exclude what was there before `start`."""

    total_gib: float
    """Memory of the device."""

    def start(self, cap_gib: float | None) -> None:
        """Call once, after imports and before the model: sets the base line and the cap."""
        ...

    def limit_gib(self) -> float:
        """What this worker's allocator may hold: cap or device, less what the device holds outside it."""
        ...

    def outside_gib(self) -> float:
        """What the device holds outside the allocator: context, libraries, other processes."""
        ...

    def reset_peak(self) -> None:
        """Starts a new peak."""
        ...

    def peak_allocated_gib(self) -> float:
        """Highest allocation since `reset_peak`."""
        ...

    def peak_reserved_gib(self) -> float:
        """Most that the allocator held since `reset_peak`."""
        ...

    def alloc_retries(self) -> int:
        """Times so far that the allocator gave memory back and tried again."""
        ...

    def out_of_memory(self, error: BaseException) -> dict[str, float | None] | None:
        """Sizes of an allocation that failed (asked, allocated, reserved), None where `error` is something else."""
        ...

    def release(self) -> None:
        """Lifts the cap, so that a worker that ran into it can still report."""
        ...


class CudaClock:
    """CUDA events on the current stream."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def finish(self) -> list[float]:
        self._events[-1].synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]


class CpuClock:
    """The host's clock: on a CPU the work is done when the call returns."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def mark(self) -> None:
        self._moments.append(time.perf_counter())

    def finish(self) -> list[float]:
        return [after - before for before, after in zip(self._moments, self._moments[1:], strict=False)]


class CudaMeter:
    """torch's caching allocator on the current device. Its counters move in host order, so reading costs no sync."""

    def __init__(self) -> None:
        self.total_gib = torch.cuda.mem_get_info()[1] / GIB
        self._cap_gib: float | None = None

    def start(self, cap_gib: float | None) -> None:
        torch.zeros(1, device="cuda")
        self._cap_gib = cap_gib
        if cap_gib is not None:
            allowed = max(0.0, cap_gib - self.outside_gib())
            torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / self.total_gib))

    def limit_gib(self) -> float:
        whole = self.total_gib if self._cap_gib is None else min(self._cap_gib, self.total_gib)
        return whole - self.outside_gib()

    def outside_gib(self) -> float:
        free, total = torch.cuda.mem_get_info()
        return max(0.0, (total - free - torch.cuda.memory_reserved()) / GIB)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def peak_allocated_gib(self) -> float:
        return torch.cuda.max_memory_allocated() / GIB

    def peak_reserved_gib(self) -> float:
        return torch.cuda.max_memory_reserved() / GIB

    def alloc_retries(self) -> int:
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def out_of_memory(self, error: BaseException) -> dict[str, float | None] | None:
        if not isinstance(error, torch.OutOfMemoryError) and not self._refused_to_library(error):
            return None
        asked = asked_bytes(error)
        return {
            "asked_gib": None if asked is None else asked / GIB,
            "allocated_gib": torch.cuda.memory_allocated() / GIB,
            "reserved_gib": torch.cuda.memory_reserved() / GIB,
        }

    def _refused_to_library(self, error: BaseException) -> bool:
        """Whether the driver had nothing left for cuBLAS, NCCL or a kernel: what it says, on a device that is full."""
        if not isinstance(error, RuntimeError) or not _LIBRARY_REFUSED.search(str(error)):
            return False
        return torch.cuda.mem_get_info()[0] / GIB < (1 - HEADROOM) * self.total_gib

    def release(self) -> None:
        return


class CpuMeter:
    """Memory of this process: resident pages. Nothing is reserved beyond these.

    The cap is RLIMIT_DATA, so that an allocation beyond it really fails. torch's CPU allocator then raises a plain
    RuntimeError; what tells it from others is the size that it says it could not have.

    Under a cap the C library gives each tensor pages of its own and takes them back at once: what a step holds is then
    the same in every run within 0.3 %. On a heap, which keeps and splits what is freed, it differs by 8 % (BLOOM's
    miniature on DDP at micro-batch 4: 255 MiB, on the heap 331 to 358). It doubles a step's processor time, which all
    layouts of a capped search share.
    """

    def __init__(self, share_gib: float) -> None:
        self.total_gib = share_gib
        self._cap_gib: float | None = None
        self._base_resident_gib = 0.0

    def start(self, cap_gib: float | None) -> None:
        if cap_gib is not None:
            _allocate_by_pages()
        self._base_resident_gib = _status_gib("VmRSS")
        self._cap_gib = cap_gib
        if cap_gib is not None:
            soft = int((_status_gib("VmData") + cap_gib) * GIB)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def limit_gib(self) -> float:
        return self.total_gib if self._cap_gib is None else self._cap_gib

    def outside_gib(self) -> float:
        return 0.0

    def reset_peak(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")

    def peak_allocated_gib(self) -> float:
        return max(0.0, _status_gib("VmHWM") - self._base_resident_gib)

    def peak_reserved_gib(self) -> float:
        return self.peak_allocated_gib()

    def alloc_retries(self) -> int:
        return 0

    def out_of_memory(self, error: BaseException) -> dict[str, float | None] | None:
        held_gib = _status_gib("VmRSS") - self._base_resident_gib
        sizes: dict[str, float | None] = {"asked_gib": None, "allocated_gib": held_gib, "reserved_gib": held_gib}
        limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (limited and str(error) == "std::bad_alloc"):
            return sizes
        asked = asked_bytes(error) if isinstance(error, RuntimeError) else None
        if asked is None:
            return None
        # That it would fit by now says nothing: what the failed step held is given back on the way here.
        return {**sizes, "asked_gib": asked / GIB} if limited or asked > self.total_gib * GIB else None

    def release(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


_PAGES = {-8: 1, -3: 2**16, -1: 2**17}
"""Of glibc's mallopt: arenas, the bytes from which an allocation has pages of its own, and those kept when freed."""


def _allocate_by_pages() -> None:
    """Gives every allocation of a tensor's size pages of its own, and what the heap holds of freed ones back."""
    libc = ctypes.CDLL(None)
    for option, value in _PAGES.items():
        libc.mallopt(option, value)
    libc.malloc_trim(0)


def _status_gib(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / GIB if found else 0.0
