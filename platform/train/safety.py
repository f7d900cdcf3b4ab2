"""A short trial training of a search's winner: held-out loss, checkpoint, and 50 steps without growth of memory."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from platform.cluster.nodes import ClusterHandle
from platform.common.errors import ClusterError, InputError
from platform.common.output import print_line
from platform.common.text import duration, figure
from platform.train.attempts import Attempts, check_layouts
from platform.train.promise import memory_growth
from platform.train.target import read_target
from platform.train.train_options import TrainOptions
from platform.train.training_session import opened
from trainers.records.training import Record, Saved, Steps, Validated

_STEPS = 51
"""Optimizer steps of the trial training; memory is compared over 50 of them."""


def unsafe_reason(handle: ClusterHandle, study: Path) -> str:
    """Trains the study's winner for some steps; returns why a long training would fail, "" if nothing indicates a
    failure.

    The trial training's folder, inside the study's folder, is removed.
    """
    out = study / "safe"
    shutil.rmtree(out, ignore_errors=True)  # left by a killed driver
    try:
        return _run_trial(handle, study, out)
    except (ClusterError, InputError) as error:
        return str(error)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _run_trial(handle: ClusterHandle, study: Path, out: Path) -> str:
    target = read_target(str(study), study.parent, None, trusted=True)
    if target.recipe is None:
        return f"study {study.name} has no recipe"
    tokens = _STEPS * target.recipe.tokens_per_step
    if target.tokens_per_s:
        takes = duration(tokens / target.tokens_per_s)
        print_line(f"--safe: {_STEPS} steps of the winner, about {takes}, with held-out losses and checkpoints.")
    options = TrainOptions(
        target=str(study),
        studies=study.parent,
        tokens=tokens,
        out=out,
        val_every=tokens,
        keep=1,
        checkpoint_s=1e9,
        trust=True,
    )
    with opened(options) as training:
        check_layouts(training.plan, handle.cluster)
        if Attempts(training.folder, training.plan, handle, training.settings).run():
            return "it was interrupted"
        records = training.folder.read_records()
    reason = objection(records, memory_counts=handle.has_gpus)
    if not reason:
        print_line(_safe_sentence(records, memory_counts=handle.has_gpus))
    return reason


def objection(records: Sequence[Record], *, memory_counts: bool) -> str:
    """Returns the problem that the records of a training's first steps show; "" if they show none."""
    validated = [record for record in records if isinstance(record, Validated)]
    losses = [loss for record in records if isinstance(record, Steps) for loss in record.losses]
    if not all(map(math.isfinite, (*losses, *(validation.loss for validation in validated)))):
        return "a loss is not a number"
    if not validated:
        return "no held-out loss was measured"
    if not any(isinstance(record, Saved) for record in records):
        return "no checkpoint could be written"
    return memory_growth(records) if memory_counts else ""


def _safe_sentence(records: Sequence[Record], *, memory_counts: bool) -> str:
    steps = [record for record in records if isinstance(record, Steps)]
    saved = [record for record in records if isinstance(record, Saved)]
    loss = next(record.loss for record in reversed(records) if isinstance(record, Validated))
    memory = "without growth of memory" if memory_counts else "(the memory of CPU workers is not judged)"
    return (
        f"The winner is safe to train: {steps[-1].last_step} steps {memory}, held-out loss {figure(loss)}, a"
        f" checkpoint of {figure(saved[-1].gib)} GiB that stops the steps for"
        f" {figure(max(checkpoint.stall_s for checkpoint in saved))} s."
    )
