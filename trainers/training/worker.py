"""One rank of a training, without Ray: from the newest checkpoint to the end of the attempt's last phase."""

import socket
import time
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from trainers.engines.create import create_engine, engine_class
from trainers.host.failures import RungFailure, one_line, size
from trainers.measuring import matmul_peak
from trainers.records.measurement import Outcome
from trainers.records.plain_files import last_attempt
from trainers.records.training_files import ATTEMPT, CHECKPOINTS
from trainers.spec.placement import placement_refusal
from trainers.training import checkpoint_reading, initial_weights
from trainers.training.loop import TrainingLoop
from trainers.training.rank import TrainingRank


class TrainingWorker(TrainingRank):
    def run(self) -> str:
        """Trains; returns why it ended: "done" with the last phase on this layout, or "stopped" by the driver."""
        job = self.job
        self.watchdog.beat("init", allowed_s=job.first_step_s)
        self._check_folder()
        self.nodes = tuple(self.gather(socket.gethostname()))
        if reason := placement_refusal(job.layout, self.nodes):
            raise RungFailure(Outcome.FAILED, reason, phase="init", rank=dist.get_rank())
        measured = matmul_peak.measure_tflops(self.device, job.plan.recipe.compute_precision, job.peak_s)
        # All at once as in training, because they share power and cooling.
        self.matmul_tflops = tuple(self.gather(measured))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        engine_class(job.layout.engine)  # imported before, so that its memory does not count as the model's
        self.meter.start(None)
        engine = create_engine(job.plan.recipe, job.layout, self.device)
        folder = Path(job.folder, CHECKPOINTS)
        manifest = None
        self.watchdog.pause()  # slow reading from a shared disk is no hang
        self.activity = "looking for a checkpoint"
        try:
            start, damages = checkpoint_reading.agree_on_newest(folder, self.gather)
        except ValueError as error:
            raise RungFailure(Outcome.FAILED, str(error), phase=self.activity, rank=dist.get_rank()) from error
        # A checkpoint of adapters does not contain the weights beside them.
        if job.plan.initial_weights and (start is None or job.plan.recipe.adapter_rank):
            self.activity = "reading the initial weights"
            initial_weights.load(engine, Path(job.plan.initial_weights))
        if start is not None:
            self.activity = f"reading checkpoint {start.name}"
            manifest = checkpoint_reading.load(engine, start)
        loop = TrainingLoop(
            self, engine, manifest, startup_s=lambda: time.perf_counter() - self._started_s, set_aside=damages
        )
        try:
            return loop.run()
        finally:
            self.watchdog.pause()

    def _check_folder(self) -> None:
        """Checks that every rank sees the training's folder; several nodes must share it."""
        path = Path(self.job.folder, ATTEMPT)
        try:
            is_visible = last_attempt(path) == self.job.attempt
        except ValueError:
            is_visible = False
        if not all(self.gather(is_visible)):
            raise RungFailure(
                Outcome.FAILED,
                f"not every node sees the training's folder {self.job.folder}: choose one on a file system that all"
                " nodes share by --out",
                phase="init",
                rank=dist.get_rank(),
            )

    def fail(self, error: Exception) -> NoReturn:
        """Raises the failure that the driver reports, made from `error`."""
        sizes = self.meter.out_of_memory(error)
        self.meter.release()
        self.watchdog.pause()  # destroying a failed group may take a while, and is no hang
        if isinstance(error, RungFailure):
            raise error
        rank = dist.get_rank()
        if sizes is None:
            raise RungFailure(Outcome.FAILED, one_line(error), phase=self.activity, rank=rank) from error
        reason = (
            f"rank {rank} asked for {size(sizes['asked_gib'])} in {self.activity}, with"
            f" {size(sizes['allocated_gib'])} allocated: choose a layout or a batch point that takes less memory"
        )
        raise RungFailure(Outcome.OOM, reason, phase=self.activity, rank=rank, **sizes) from None
