"""`RunContext`: one rank of a trial as measuring, profiling and the numerics gate see it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from trainers.host.watchdog import Watchdog
from trainers.measuring.device import DeviceClock, Meter
from trainers.measuring.host_load import HostSampler
from trainers.measuring.sampling import Sampler
from trainers.records.job import Job
from trainers.records.measurement import Conditions


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """One rank of a trial: its job, its device's instruments, and its connections to other ranks and to the trial."""

    job: Job
    rank: int
    device: torch.device
    meter: Meter
    sampler: Sampler
    host: HostSampler
    watchdog: Watchdog
    clock: Callable[[], DeviceClock]
    """Returns a new clock of the device's kind."""
    gather: Callable[[Any], list[Any]]
    """Returns every rank's value, by rank, on every rank; a collective."""
    enter: Callable[[str], None]
    """Sets the phase to which a failure is attributed."""
    promise: Callable[[float], None]
    """Extends the trial's deadline by the seconds that the next work should take."""
    conditions: Callable[[], Conditions]
    """Returns device, versions and environment of this rank."""
    matmul_peak_tflops: float | None
