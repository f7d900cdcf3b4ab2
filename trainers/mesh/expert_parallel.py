"""Expert parallelism: each rank of a group has some experts of every block, and computes the rows of all the group's
tokens for them (arXiv 2006.16668, section 3).

The ranks of a group are neighbours among those that share one copy of the model. A rank holds plain parameters of its
experts alone, which FSDP2 lays out over the ranks that have the same ones; everything else is laid out over all. Rows
go to the experts' ranks and back inside a block (`trainers.kernels.experts`).

The gradient of an expert sums up the rows of all its group's ranks, of which each has a mean loss of its own, where
others are means over the ranks. `average` divides by the ranks of a group what FSDP2 has averaged over all others.
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
    """A model, or stages of it, whose experts the mesh's `ep` ranks share out; with one rank nothing is changed."""

    def __init__(self, models: Sequence[Model], mesh: Mesh) -> None:
        """Takes `models` on the meta device."""
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
        """Returns this rank's experts of the parameter called `name`; all of it where it is no experts'."""
        return full.chunk(self.size)[self._rank].clone() if name in self._cut else full

    def gathered(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Returns the whole of a part that `cut` returned; a collective of the group's ranks."""
        if name not in self._cut:
            return part
        ranks = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(ranks, part.contiguous(), group=self._group)
        return torch.cat(ranks)

    def placed(self, name: str, tensor: StateTensor) -> StateTensor:
        """Returns the place in the whole model of `tensor`, which lies in this rank's part of the parameter `name`."""
        if name not in self._cut:
            return tensor
        count, *others = tensor.shape
        parts = tuple(
            TensorPart(offsets=(part.offsets[0] + self._rank * count, *part.offsets[1:]), tensor=part.tensor)
            for part in tensor.parts
        )
        return dataclasses.replace(tensor, shape=(count * self.size, *others), parts=parts)

    def average(self, gradients: Iterable[tuple[str, torch.Tensor | None]]) -> None:
        """Divides the gradients of experts by the number of ranks whose rows they sum up, in place."""
        for name, gradient in gradients:
            if name in self._cut and gradient is not None:
                gradient.div_(self.size)

    @staticmethod
    def in_effect(models: Sequence[Model]) -> int | None:
        """Returns the number of ranks that share out experts, by this one's; None where it has no block."""
        held = [next(experts.parameters()).shape[0] for model in models for _, experts in experts_of(model)]
        if held:
            return models[0].spec.num_experts // held[0]
        return None if models[0].spec.num_experts else 1


def experts_of(model: Model, unit: nn.Module | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Yields the experts of each block, a module, with its name in the plain model; of the block in `unit` alone where
    that is given.
    """
    family = architecture_of(model.spec.architecture)
    if not isinstance(family, WithExperts):
        return
    for name, block, own_unit in zip(model.block_names, model.blocks, model.units, strict=True):
        if unit is None or unit is own_unit:
            yield f"{name}.{family.experts}", block.get_submodule(family.experts)
