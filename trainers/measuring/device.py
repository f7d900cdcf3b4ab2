"""Device-specific instruments for a GPU and for a CPU worker: clock, memory counters, memory cap."""

import dataclasses
import math
import re
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from trainers.host.failures import GIB, requested_bytes
from trainers.measuring.ladder import HEADROOM
from trainers.measuring.tensor_bytes import Allocation, TensorBytes

_LIBRARY_REFUSED = re.compile(r"out of memory|_ALLOC_FAILED")


class DeviceClock(Protocol):
    """Records moments in the device's order of work."""

    def mark(self) -> None:
        """Records a moment without waiting for the device."""
        ...

    def finish(self) -> list[float]:
        """Waits for the device once and returns the seconds between consecutive marks."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorPeak:
    """Peak memory of a device's allocator, in GiB."""

    allocated_gib: float
    reserved_gib: float


class Meter(Protocol):
    """Memory of one worker's device. Sizes are in GiB and exclude memory held before `start`."""

    total_gib: float
    """Total memory of the device."""

    def start(self, cap_gib: float | None, *, held_gib: float | None = None) -> None:
        """Sets the baseline and the cap of the device's memory, and the most that a GPU's allocator may hold
        (`held_gib`). Call it once, after imports and before the model is built.
        """
        ...

    def limit_gib(self) -> float:
        """Returns how much this worker's allocator may hold: the cap or the device's memory, less `outside_gib`."""
        ...

    def outside_gib(self) -> float:
        """Returns the device's memory held outside the allocator: by the context, libraries and other processes."""
        ...

    def reset_peak(self) -> None:
        """Discards earlier peaks and starts a first part."""
        ...

    def begin_part(self) -> None:
        """Starts another part of the peak; may be called anywhere in a step."""
        ...

    def peaks(self) -> list[AllocatorPeak]:
        """Returns the peak of each part since `reset_peak`. On a CPU the first call ends the counting. Without
        `reset_peak`, the earlier peak is included.
        """
        ...

    def enforce_cap(self, part: int) -> None:
        """Raises `torch.OutOfMemoryError` if the peak of that part exceeded the cap; does nothing on a GPU, whose
        allocator enforces the cap itself.
        """
        ...

    def alloc_retries(self) -> int:
        """Returns how often the allocator has released cached memory and tried again, so far."""
        ...

    def out_of_memory(self, error: BaseException) -> dict[str, float | None] | None:
        """Returns the sizes of a failed allocation (asked, allocated, reserved), None if `error` has another cause."""
        ...

    def release(self) -> None:
        """Removes the cap, so that a worker that reached it can still report."""
        ...


class CudaClock:
    """Measures by CUDA events on the current stream."""

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
    """Measures by the host's clock, because CPU work is done when a call returns."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def mark(self) -> None:
        self._moments.append(time.perf_counter())

    def finish(self) -> list[float]:
        return [after - before for before, after in zip(self._moments, self._moments[1:], strict=False)]


class CudaMeter:
    """Reads torch's caching allocator on the current device. Its counters change in host order, so reading them needs
    no synchronisation.
    """

    def __init__(self) -> None:
        self.total_gib = torch.cuda.mem_get_info()[1] / GIB
        self._cap_gib: float | None = None
        self._past_parts: list[AllocatorPeak] = []

    def start(self, cap_gib: float | None, *, held_gib: float | None = None) -> None:
        torch.zeros(1, device="cuda")
        self._cap_gib = cap_gib
        allowed = [] if held_gib is None else [held_gib]
        allowed += [] if cap_gib is None else [cap_gib - self.outside_gib()]
        if allowed:
            torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, min(allowed)) / self.total_gib))

    def limit_gib(self) -> float:
        capped_gib = self.total_gib if self._cap_gib is None else min(self._cap_gib, self.total_gib)
        return capped_gib - self.outside_gib()

    def outside_gib(self) -> float:
        free, total = torch.cuda.mem_get_info()
        return max(0.0, (total - free - torch.cuda.memory_reserved()) / GIB)

    def reset_peak(self) -> None:
        self._past_parts = []
        torch.cuda.reset_peak_memory_stats()

    def begin_part(self) -> None:
        self._past_parts.append(self._peak())
        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> list[AllocatorPeak]:
        return [*self._past_parts, self._peak()]

    def _peak(self) -> AllocatorPeak:
        return AllocatorPeak(
            allocated_gib=torch.cuda.max_memory_allocated() / GIB, reserved_gib=torch.cuda.max_memory_reserved() / GIB
        )

    def enforce_cap(self, part: int) -> None:
        return

    def alloc_retries(self) -> int:
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def out_of_memory(self, error: BaseException) -> dict[str, float | None] | None:
        if not isinstance(error, torch.OutOfMemoryError) and not self._refused_to_library(error):
            return None
        requested = requested_bytes(error)
        return {
            "asked_gib": None if requested is None else requested / GIB,
            "allocated_gib": torch.cuda.memory_allocated() / GIB,
            "reserved_gib": torch.cuda.memory_reserved() / GIB,
        }

    def _refused_to_library(self, error: BaseException) -> bool:
        """Returns whether `error` is the message of cuBLAS, NCCL or a kernel that got no memory from the driver, on a
        full device.
        """
        if not isinstance(error, RuntimeError) or not _LIBRARY_REFUSED.search(str(error)):
            return False
        return torch.cuda.mem_get_info()[0] / GIB < (1 - HEADROOM) * self.total_gib

    def release(self) -> None:
        return


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CountedPart:
    """The counted allocations in one part of a step."""

    peak_gib: float
    refused: Allocation | None
    """The first allocation that exceeded the cap."""


class CpuMeter:
    """Counts the bytes of this process's tensors, as a GPU's allocator does. Reserved memory equals allocated memory.

    These bytes are the same in every run, unlike resident pages, which varied from 331 to 358 MiB for one step. They
    are counted between `reset_peak` and `peaks`. A step that exceeded the cap finishes first; then `enforce_cap` raises
    the error that a GPU's allocator would have raised within the step. A step that would exhaust the node fails at
    once, because RLIMIT_DATA limits the process to its share of the node.

    Without `reset_peak`, as in training, nothing is counted; the peak is then the growth of resident pages.
    """

    def __init__(self, share_gib: float) -> None:
        self.total_gib = share_gib
        self._cap_gib: float | None = None
        self._tensors = TensorBytes()
        self._base_bytes = 0
        self._base_resident_bytes = 0
        self._parts: list[CountedPart] = []
        """Parts of the last counting; empty before the first one."""

    def start(self, cap_gib: float | None, *, held_gib: float | None = None) -> None:
        self._base_bytes = self._tensors.now()
        self._base_resident_bytes = _status_bytes("VmRSS")
        self._cap_gib = cap_gib
        if cap_gib is not None:
            soft = _status_bytes("VmData") + int(max(cap_gib, self.total_gib) * GIB)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def limit_gib(self) -> float:
        return self.total_gib if self._cap_gib is None else self._cap_gib

    def outside_gib(self) -> float:
        return 0.0

    def reset_peak(self) -> None:
        self._parts = []
        self._tensors.begin()

    def begin_part(self) -> None:
        self._tensors.begin_part()

    def peaks(self) -> list[AllocatorPeak]:
        if self._tensors.is_counting:
            self._parts = [self._counted(allocations) for allocations in self._tensors.end()]
        if self._parts:
            return [AllocatorPeak(allocated_gib=part.peak_gib, reserved_gib=part.peak_gib) for part in self._parts]
        grown_gib = max(0, _status_bytes("VmHWM") - self._base_resident_bytes) / GIB
        return [AllocatorPeak(allocated_gib=grown_gib, reserved_gib=grown_gib)]

    def _counted(self, allocations: Sequence[Allocation]) -> CountedPart:
        cap_gib = math.inf if self._cap_gib is None else self._cap_gib
        return CountedPart(
            peak_gib=max(map(self._held_gib, allocations)),
            refused=next((allocation for allocation in allocations if self._held_gib(allocation) > cap_gib), None),
        )

    def enforce_cap(self, part: int) -> None:
        self.peaks()
        if self._parts and self._parts[part].refused is not None:
            raise torch.OutOfMemoryError(f"the cap of {self._cap_gib} GiB is below what the step's tensors take")

    def alloc_retries(self) -> int:
        return 0

    def out_of_memory(self, error: BaseException) -> dict[str, float | None] | None:
        held_gib = max(peak.allocated_gib for peak in self.peaks())
        refused = next((part.refused for part in self._parts if part.refused is not None), None)
        if isinstance(error, torch.OutOfMemoryError) and refused is not None:
            asked_gib = refused.requested_bytes / GIB
            held_gib = self._held_gib(refused) - asked_gib
            return {"asked_gib": asked_gib, "allocated_gib": held_gib, "reserved_gib": held_gib}
        sizes: dict[str, float | None] = {"asked_gib": None, "allocated_gib": held_gib, "reserved_gib": held_gib}
        limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (limited and str(error) == "std::bad_alloc"):
            return sizes
        requested = requested_bytes(error) if isinstance(error, RuntimeError) else None
        if requested is None:
            return None
        # Whether the request would fit now proves nothing, because the failed step has released its memory meanwhile.
        return {**sizes, "asked_gib": requested / GIB} if limited or requested > self.total_gib * GIB else None

    def release(self) -> None:
        self.peaks()  # also ends the counting
        self._cap_gib = None
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

    def _held_gib(self, allocation: Allocation) -> float:
        return max(0, allocation.held_bytes - self._base_bytes) / GIB


def peak_resident_gib() -> float:
    """Returns the most host memory (GiB) that this process has had resident."""
    return _status_bytes("VmHWM") / GIB


def _status_bytes(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
