"""The held-out loss: the mean over sequences that no step trains on, whatever the layout."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainers import data
from trainers.data.flags import FLAG
from trainers.engines.stepper import Engine
from trainers.kernels.experts import counted_tokens
from trainers.marks.step import StepPhase as StepPhase
from trainers.records.training import TrainingPlan
from trainers.spec.layout import Layout


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Results on the held-out sequences, equal on every rank and for every layout."""

    loss: float
    tokens_of_experts: tuple[tuple[int, ...], ...] = ()
    """Number of tokens routed to each expert, for each block; empty for a model without experts."""

    @property
    def fullest(self) -> tuple[float, ...]:
        """Tokens of the fullest expert over the mean, for each block."""
        return tuple(max(tokens) * len(tokens) / sum(tokens) for tokens in self.tokens_of_experts)

    @property
    def empty(self) -> tuple[int, ...]:
        """Number of experts without a token, for each block."""
        return tuple(tokens.count(0) for tokens in self.tokens_of_experts)


class Validator:
    """Computes a plan's held-out loss, and the experts of held-out tokens, on one rank of a layout."""

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

    def loss(self, engine: Engine, gather: Callable[[Any], list[Any]], begin: Callable[[StepPhase], None]) -> HeldOut:
        """Returns the held-out sequences' mean loss and tokens by expert. Every rank makes equally many passes."""
        size, ranks = self._micro_batch, self._ranks
        blocks = [(index, block) for m in engine.models for index, block in zip(m.block_indices, m.blocks, strict=True)]
        routed = {index: torch.zeros((), dtype=torch.int64) for index, _ in blocks}
        total, count = 0.0, 0
        for first in range(0, self._sequences, size * ranks):
            own_sequences = range(
                first + self._coordinate * size, min(first + (self._coordinate + 1) * size, self._sequences)
            )
            begin(StepPhase.MICRO_STEP)
            # A rank without a sequence in this pass takes part with one that does not count.
            indices = [self._first + own_sequence for own_sequence in own_sequences] or [self._first]
            tokens = torch.from_numpy(self._source.tokens(self._source.position_after(0), indices))
            modules = (module for _, block in blocks for module in block.modules())
            with counted_tokens(modules, self._device) as tokens_of_experts:
                loss = float(engine.loss(tokens.to(self._device)))
            labels = int((tokens[: len(own_sequences), 1:] < FLAG).sum())
            total, count = total + loss * labels, count + labels
            if own_sequences and tokens_of_experts:
                routed = {i: routed[i] + counts.cpu() for i, counts in zip(routed, tokens_of_experts, strict=True)}
        sums = gather((total, count, {index: tokens.tolist() for index, tokens in routed.items() if tokens.ndim}))
        return HeldOut(
            loss=sum(rank_total for rank_total, *_ in sums) / max(1, sum(number for _, number, _ in sums)),
            tokens_of_experts=_summed([of_rank for *_, of_rank in sums]),
        )


def _summed(of_ranks: Sequence[Mapping[int, Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    """Returns the ranks' sums by block, in the order of blocks."""
    lists = {
        index: [counts[index] for counts in of_ranks if index in counts] for counts in of_ranks for index in counts
    }
    return tuple(tuple(map(sum, zip(*lists[index], strict=True))) for index in sorted(lists))
