"""The whole weights and gradients of an engine that has parts of them, by names in the plain transformers model.

Ranks gather live parameters, by another way than the boxes of `training_state`, so that tests compare the two. Every
function is a collective over all ranks.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from trainers.engines.deepspeed_library import safe_get_full_fp32_param
from trainers.engines.settings import plain_name, state_dtype
from trainers.spec.architectures import architecture_of

Named = Iterator[tuple[str, torch.Tensor]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """A rank's part of a tensor: how FSDP2, then expert parallelism, then tensor parallelism divide the whole one."""

    octets: npt.NDArray[numpy.uint8]
    """Its bytes: an array takes a tenth of a tensor's time to pickle."""
    shape: torch.Size
    dtype: torch.dtype
    shards: list[int]
    """The ranks that have the other shards, in the order of the rows."""
    experts: list[int]
    """The ranks that share the experts out, in their order."""
    cut: tuple[int, int] | None
    """The dimension along which tensor parallelism divides the tensor, and the number of matrices stacked along it."""
    cuts: list[int]
    """The ranks that tensor parallelism divides the tensor over, in their order."""

    @property
    def values(self) -> torch.Tensor:
        """The part as a tensor."""
        return torch.from_numpy(self.octets).view(self.dtype).view(self.shape)


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """Returns a copy of the engine's master weights, in the type in which they are stored."""
    if engine.layout.engine == "deepspeed":
        return {name: weight.clone() for name, weight in _deepspeed_weights(engine)}
    return dict(of_stages(engine, _parameters))


def of_stages(engine: Any, tensors_of: Callable[[nn.Module], Named]) -> Named:
    """Yields copies of the whole tensors of the model, or of all a pipeline's stages on every rank, a tied table once.

    `tensors_of` yields a module's tensors, divided as its parameters are, by their names in the plain model.
    """
    pipeline = engine._pipeline
    if pipeline is None:
        yield from _whole(engine, tensors_of(engine.module), dist.get_rank())
        return
    head = f"{architecture_of(engine.recipe.model.architecture).head}.weight"
    for index in range(pipeline._parts[0].stage.num_stages):
        holder = dist.get_global_rank(pipeline._group, index % dist.get_world_size(pipeline._group))
        part = next((own_part for own_part in pipeline._parts if own_part.stage.index == index), None)
        left_out = head if part is not None and part.stage.has_head and pipeline.has_second_copy else ""
        tensors = iter(()) if part is None else tensors_of(part.module)
        yield from _whole(engine, ((name, tensor) for name, tensor in tensors if name != left_out), holder)


def _whole(engine: Any, tensors: Named, holder: int) -> Named:
    """Yields whole tensors, put together of what rank `holder` and the ranks beside it have.

    All parts are exchanged at once: a collective for each tensor would take longer than a small step.
    """
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, {name: _part(engine, name, tensor) for name, tensor in tensors})

    def uncut(name: str, rank: int) -> torch.Tensor:
        return torch.cat([unsharded(name, other) for other in ranks[rank][name].experts])

    def unsharded(name: str, rank: int) -> torch.Tensor:
        shards = [ranks[other][name].values for other in ranks[rank][name].shards]
        return torch.cat(shards) if len(shards) > 1 else shards[0]

    for name, part in ranks[holder].items():
        if part.cut is None:
            yield name, uncut(name, holder) if len(part.experts) > 1 else unsharded(name, holder)
            continue
        dim, stacked = part.cut
        stacks = zip(*(uncut(name, rank).chunk(stacked, dim) for rank in part.cuts), strict=True)
        yield name, torch.cat([torch.cat(stack, dim) for stack in stacks], dim)


def _part(engine: Any, name: str, tensor: torch.Tensor) -> _Part:
    shards = [dist.get_rank()]
    if isinstance(tensor, DTensor):
        mesh, placement = tensor.device_mesh, tensor.placements[-1]
        assert placement == Shard(0) and all(other.is_replicate() for other in tensor.placements[:-1])
        shards = dist.get_process_group_ranks(mesh.get_group(mesh.ndim - 1))
        tensor = tensor.to_local()
    is_shared_out, cut = name in engine._experts._cut, engine._tensor._cuts.get(name)
    return _Part(
        octets=tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy(),
        shape=tensor.shape,
        dtype=tensor.dtype,
        shards=shards,
        experts=dist.get_process_group_ranks(engine._experts._group) if is_shared_out else [dist.get_rank()],
        cut=None if cut is None else (cut.dim, cut.stacked),
        cuts=[] if cut is None else dist.get_process_group_ranks(engine._tensor._group),
    )


def _parameters(module: nn.Module) -> Named:
    return ((plain_name(name), parameter) for name, parameter in module.named_parameters())


def _deepspeed_weights(engine: Any) -> Named:
    for name, parameter in engine._engine.module.named_parameters():
        full = parameter.detach() if engine.layout.zero_stage == 0 else safe_get_full_fp32_param(parameter)
        assert full is not None
        # DeepSpeed may return fp32 for 16-bit masters.
        yield plain_name(name), full.to(state_dtype(engine.recipe))
