"""Every rank's work in the tests of the loop: the attempts of a training, one after the other."""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainers.records.training import TrainingJob, TrainingPlan
from trainers.records.training_files import ATTEMPT
from trainers.spec.cluster import Cluster
from trainers.training.loop import TrainingLoop
from trainers.training.worker import TrainingWorker

ALLOWED = "allowed"
"""First part of the name of the file that lists, for each part of a step of an attempt, the worker's position and the
seconds that the watchdog may wait.
"""


def job(folder: Path, plan: TrainingPlan, **fields: Any) -> TrainingJob:
    """Returns the job of an attempt in the plan's first phase, with a checkpoint every four steps."""
    cluster = Cluster(device_kind="cpu", device="CPU", device_memory_gib=1.0, devices_per_node=2)
    defaults: dict[str, Any] = {
        "plan": plan,
        "folder": str(folder),
        "attempt": 1,
        "layout": plan.phases[0].layout,
        "cluster": cluster,
        "cpus_per_worker": 1.0,
        "checkpoint_steps": 4,
        "hang_floor_s": 600.0,
        "peak_s": 0.01,
    }
    return TrainingJob(**{**defaults, **fields})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt, and the numbers of the steps before which events happen."""

    job: TrainingJob
    dies_before: int | None = None
    """All ranks end without a message before this step."""
    full_before: int | None = None
    """The disk of the training's folder becomes full before this step."""
    free_before: int | None = None


class Gone(Exception):
    """Replaces the end of a rank's process."""


def attempts(planned_attempts: list[Attempt]) -> list[str]:
    """Runs the attempts one after the other and returns why each ended."""
    return [_play(planned_attempt) for planned_attempt in planned_attempts]


def _play(attempt: Attempt) -> str:
    folder = Path(attempt.job.folder)
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        (folder / ATTEMPT).write_text(str(attempt.job.attempt))
    dist.barrier()
    worker = TrainingWorker(attempt.job, time.perf_counter())
    beat, allowed = worker.watchdog.beat, list[tuple[str, float | None]]()

    def recorded_beat(activity: str, *, allowed_s: float | None = None, pending: int = 0) -> None:
        allowed.append((worker.activity, allowed_s))
        beat(activity, allowed_s=allowed_s, pending=pending)

    worker.watchdog.beat = recorded_beat
    try:
        with _disturbed(attempt):
            return worker.run()
    except Gone:
        return "gone"
    finally:
        dist.barrier()
        worker.watchdog.pause()
        if dist.get_rank() == 0:
            (folder / f"{ALLOWED}-{attempt.job.attempt}.json").write_text(json.dumps(allowed))


@contextlib.contextmanager
def _disturbed(attempt: Attempt) -> Generator[None]:
    """Injects, before steps of the loop, the events that the attempt states."""
    loop: Any = TrainingLoop
    one_step, filler = loop._one_step, Path(attempt.job.folder) / "filler"

    def disturbed(itself: Any, *arguments: Any) -> None:
        number = itself._step + 1
        if number in (attempt.dies_before, attempt.full_before, attempt.free_before):
            # What is being written belongs to the time before.
            itself._records.add_checkpoint(itself._writer.finish())
            if number == attempt.dies_before:
                raise Gone
            if dist.get_rank() == 0 and number == attempt.full_before:
                with filler.open("wb") as file, contextlib.suppress(OSError):
                    while True:
                        os.write(file.fileno(), b"x" * 4096)
            elif dist.get_rank() == 0:
                filler.unlink()
            dist.barrier()
        one_step(itself, *arguments)

    loop._one_step = disturbed
    try:
        yield
    finally:
        loop._one_step = one_step
