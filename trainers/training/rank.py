"""One rank of a training as its loop sees it: the job, the device, the watchdog, and agreement among ranks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainers.host.watchdog import Watchdog
from trainers.measuring.device import CpuMeter, CudaMeter, Meter
from trainers.records.plain_files import last_attempt
from trainers.records.training import TrainingJob
from trainers.records.training_files import ATTEMPT


class TrainingRank:
    def __init__(self, job: TrainingJob, started_s: float) -> None:
        self.job, self._started_s = job, started_s
        on_cuda = job.cluster.device_kind == "cuda"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
        self.meter: Meter = CudaMeter() if on_cuda else CpuMeter(job.cluster.device_memory_gib)
        # Small agreements between hosts use gloo, so that they take neither device memory nor device time.
        self._control = dist.new_group(backend="gloo") if on_cuda else dist.group.WORLD
        self.watchdog = Watchdog(floor_s=job.hang_floor_s, on_hang=lambda *_: None)
        self.activity = "start-up"
        self.nodes: tuple[str, ...] = ()
        self.matmul_tflops: tuple[float, ...] = ()

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's `value`, by rank, on every rank."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._control)
        return values

    @property
    def is_current(self) -> bool:
        """Whether no newer attempt has begun."""
        try:
            return last_attempt(Path(self.job.folder, ATTEMPT)) in (0, self.job.attempt)
        except ValueError:
            return True  # a slow or full file system says nothing about attempts
