"""Expert parallelism: each rank of a group has some experts of every block, and computes for them the rows of all the
group's tokens (arXiv 2006.16668, section 3).

The ranks of a group are neighbours among the ranks that share one copy of the model. A rank holds its experts as plain
parameters, which FSDP2 shards over the ranks that have the same experts; all other parameters are sharded over all
ranks. Rows go to the experts' ranks and back inside a block (`trainers.kernels.experts`).

An expert's gradient sums the rows of all ranks of its group, each with its own mean loss, while other gradients are
means over the ranks. FSDP2 averages an expert's gradient over all other ranks, and `average` divides it by the group's
size.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

from trainers.distributed.groups import Mesh
from trainers.distributed.state import StateTensor, TensorPart
from trainers.kernels.experts import share_out
from trainers.models.model import Model
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.with_experts import WithExperts


class ExpertParallel:
    """A model, or stages of it, with experts shared out over the mesh's `ep` ranks; one rank changes nothing."""

    def __init__(self, models: Sequence[Model], mesh: Mesh) -> None:
        self.size = mesh.size("ep")
        self._cut = set[str]()
        if self.size == 1:
            return
        self._group = mesh.expert_group()
        self._rank = dist.get_rank(self._group)
        for name, experts in (pair for model in models for pair in experts_of(model)):
            share_out(experts, self._group)
            self._cut |= {f"{name}.{parameter_name}" for parameter_name, _ in experts.named_parameters()}

    def cut(self, name: str, full: torch.Tensor) -> torch.Tensor:
        """Returns this rank's experts of the parameter `name`, or all of it if it belongs to no expert."""
        return full.chunk(self.size)[self._rank].clone() if name in self._cut else full

    def placed(self, name: str, tensor: StateTensor) -> StateTensor:
        """Returns `tensor`, a part of this rank's parameter `name`, with its place in the whole model."""
        if name not in self._cut:
            return tensor
        count, *others = tensor.shape
        parts = tuple(
            TensorPart(offsets=(part.offsets[0] + self._rank * count, *part.offsets[1:]), tensor=part.tensor)
            for part in tensor.parts
        )
        return dataclasses.replace(tensor, shape=(count * self.size, *others), parts=parts)

    def average(self, gradients: Iterable[tuple[str, torch.Tensor | None]]) -> None:
        """Divides experts' gradients, in place, by the number of ranks whose rows they sum."""
        for name, gradient in gradients:
            if name in self._cut and gradient is not None:
                gradient.div_(self.size)

    @staticmethod
    def in_effect(models: Sequence[Model]) -> int | None:
        """Returns the number of ranks that share out experts, from the number on this rank; None if it has no block."""
        held = [next(experts.parameters()).shape[0] for model in models for _, experts in experts_of(model)]
        if held:
            return models[0].spec.num_experts // held[0]
        return None if models[0].spec.num_experts else 1


def experts_of(model: Model, unit: nn.Module | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Yields each block's module of experts with its name in the plain model; only the module of the block in `unit`,
    if given.
    """
    family = architecture_of(model.spec.architecture)
    if not isinstance(family, WithExperts):
        return
    for name, block, own_unit in zip(model.block_names, model.blocks, model.units, strict=True):
        if unit is None or unit is own_unit:
            yield f"{name}.{family.experts}", block.get_submodule(family.experts)
