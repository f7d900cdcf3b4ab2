"""What every rank of a group does in the tests of the loop: the attempts of a training, one after the other."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainers.training.loop import Loop
from trainers.training.worker import Worker
from trainers.values.batch import BatchPoint
from trainers.values.cluster import Cluster
from trainers.values.layout import Layout
from trainers.values.recipe import INCLUDED, Recipe
from trainers.values.spec import ModelSpec
from trainers.values.training import Phase, Plan, Schedule, TrainingJob, Validation
from trainers.values.training_files import ATTEMPT

MODEL = ModelSpec(
    name="tiny", architecture="gpt2", num_layers=1, hidden_size=16, num_heads=2, vocab_size=256, max_positions=64
)
RECIPE = Recipe(
    model=MODEL, seq_len=16, global_batch=4, compute_precision="fp32", learning_rate=1e-2, data=INCLUDED,
    data_order="shuffled",
)  # fmt: skip
DDP = Layout(engine="ddp", dp_replicate=2)
FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=2)
STEP = RECIPE.tokens_per_step


def plan(layout: Layout = DDP, *, steps: int = 12, **fields: Any) -> Plan:
    """A plan of `steps` optimizer steps in two micro-steps each, with a held-out loss every five."""
    batch = BatchPoint(micro_batch=1, grad_accum=4 // layout.data_parallel)
    known: dict[str, Any] = {
        "recipe": RECIPE,
        "phases": (Phase(end_tokens=steps * STEP, layout=layout, batch=batch),),
        "schedule": Schedule(kind="cosine", tokens=steps * STEP, warmup_tokens=3 * STEP, final_share=0.1),
        "validation": Validation(sequences=7, every_tokens=5 * STEP),
    }
    return Plan(**{**known, **fields})


def job(folder: Path, of: Plan, **fields: Any) -> TrainingJob:
    """An attempt at the plan's first phase, with a checkpoint every four steps."""
    cluster = Cluster(device_kind="cpu", device="CPU", device_memory_gib=1.0, devices_per_node=2)
    known: dict[str, Any] = {
        "plan": of,
        "folder": str(folder),
        "attempt": 1,
        "layout": of.phases[0].layout,
        "cluster": cluster,
        "cpus_per_worker": 1.0,
        "checkpoint_steps": 4,
        "hang_floor_s": 600.0,
        "peak_s": 0.01,
    }
    return TrainingJob(**{**known, **fields})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt, and what happens in it before the step of that number."""

    job: TrainingJob
    dies_before: int | None = None
    """All ranks are gone without a word."""
    full_before: int | None = None
    """The disk of the training's folder becomes full."""
    free_before: int | None = None


class Gone(Exception):
    """Stands for the end of a rank's process."""


def attempts(wanted: list[Attempt]) -> list[str]:
    """Plays them; why each ended."""
    return [_play(each) for each in wanted]


def _play(attempt: Attempt) -> str:
    folder = Path(attempt.job.folder)
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        (folder / ATTEMPT).write_text(str(attempt.job.attempt))
    dist.barrier()
    worker = Worker(attempt.job, time.perf_counter())
    try:
        with _disturbed(attempt):
            return worker.run()
    except Gone:
        return "gone"
    finally:
        dist.barrier()
        worker.watchdog.rest()


@contextlib.contextmanager
def _disturbed(attempt: Attempt) -> Generator[None]:
    """Has the loop's steps go wrong as the attempt says."""
    loop: Any = Loop
    one_step, filler = loop._one_step, Path(attempt.job.folder) / "filler"

    def disturbed(itself: Any, *rest: Any) -> None:
        number = itself._step + 1
        if number in (attempt.dies_before, attempt.full_before, attempt.free_before):
            # What is being written belongs to the time before.
            itself._tell(itself._writer.finish())
            if number == attempt.dies_before:
                raise Gone
            if dist.get_rank() == 0 and number == attempt.full_before:
                with filler.open("wb") as file, contextlib.suppress(OSError):
                    while True:
                        os.write(file.fileno(), b"x" * 4096)
            elif dist.get_rank() == 0:
                filler.unlink()
            dist.barrier()
        one_step(itself, *rest)

    loop._one_step = disturbed
    try:
        yield
    finally:
        loop._one_step = one_step
