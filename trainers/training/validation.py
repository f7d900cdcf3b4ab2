"""The held-out loss: the mean over sequences that no step trains on, whatever the layout."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from trainers import data
from trainers.data.flags import FLAG
from trainers.engines.stepper import Engine
from trainers.marks.step import StepPhase as StepPhase
from trainers.records.training import TrainingPlan
from trainers.spec.layout import Layout


class Validator:
    """Computes the held-out loss of a plan on one rank of a layout."""

    def __init__(self, plan: TrainingPlan, layout: Layout, device: torch.device) -> None:
        held_out, recipe = plan.validation, dataclasses.replace(plan.recipe, data_order="file")
        self.is_on = held_out.sequences > 0
        self._sequences, self._device = held_out.sequences, device
        self._ranks, self._coordinate = layout.data_parallel, layout.data_parallel_rank(dist.get_rank())
        self._micro_batch = next(phase.batch.micro_batch for phase in plan.phases if phase.layout == layout)
        if not self.is_on:
            return
        if held_out.data:
            self._source, self._first = data.source(dataclasses.replace(recipe, data=held_out.data)), 0
        else:
            self._source, self._first = data.held_out(recipe, held_out.sequences)

    def loss(self, engine: Engine, gather: Callable[[Any], list[Any]], begin: Callable[[StepPhase], None]) -> float:
        """Returns the mean loss of the held-out sequences, the same on every rank. Every rank makes as many passes."""
        size, ranks = self._micro_batch, self._ranks
        total, count = 0.0, 0
        for first in range(0, self._sequences, size * ranks):
            own_sequences = range(
                first + self._coordinate * size, min(first + (self._coordinate + 1) * size, self._sequences)
            )
            begin(StepPhase.MICRO_STEP)
            # A rank without a sequence of this pass takes part with one that does not count.
            indices = [self._first + own_sequence for own_sequence in own_sequences] or [self._first]
            tokens = torch.from_numpy(self._source.tokens(self._source.position_after(0), indices))
            loss = float(engine.loss(tokens.to(self._device)))
            labels = int((tokens[: len(own_sequences), 1:] < FLAG).sum())
            total, count = total + loss * labels, count + labels
        sums = gather((total, count))
        return sum(rank_total for rank_total, _ in sums) / max(1, sum(number for _, number in sums))
