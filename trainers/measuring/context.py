"""What measuring, profiling and the numerics gate need of the rank that they run on."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from trainers.measuring.device import Clock, Meter
from trainers.measuring.host import HostSampler
from trainers.measuring.sampling import Sampler
from trainers.values.job import Job
from trainers.values.measurement import Conditions
from trainers.watchdog import Watchdog


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """One rank of a trial: its job, its device's instruments, and its ways to the other ranks and to the trial."""

    job: Job
    rank: int
    device: torch.device
    meter: Meter
    sampler: Sampler
    host: HostSampler
    watchdog: Watchdog
    clock: Callable[[], Clock]
    """A new clock of the device's kind."""
    gather: Callable[[Any], list[Any]]
    """Every rank's value, by rank, on every rank."""
    enter: Callable[[str], None]
    """Notes the phase in which a failure would stand."""
    promise: Callable[[float], None]
    """Puts off the trial's deadline by the seconds that what comes next should take."""
    conditions: Callable[[], Conditions]
    """Device, versions and environment of this rank."""
    matmul_peak_tflops: float | None
