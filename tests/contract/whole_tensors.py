"""The whole weights and gradients of an engine that has parts of them, by names in the plain transformers model.

Ranks gather live parameters, by another way than the boxes of `training_state`, so that tests compare the two. Every
function is a collective over all ranks.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from trainers.engines.deepspeed_library import safe_get_full_fp32_param
from trainers.engines.settings import plain_name, state_dtype
from trainers.spec.architectures import architecture_of

Named = Iterator[tuple[str, torch.Tensor]]


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """Returns a copy of the engine's master weights, in the type in which they are stored."""
    if engine.layout.engine == "deepspeed":
        return {name: weight.clone() for name, weight in _deepspeed_weights(engine)}
    return {name: weight.clone() for name, weight in of_stages(engine, lambda module: _weights_of(engine, module))}


def whole(engine: Any, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole tensor of which this rank has a part, divided like the plain model's parameter `name`."""
    if isinstance(tensor, DTensor):
        tensor = cast(DTensor, tensor.to(engine.device)).full_tensor()
    if name in engine._experts._cut:
        tensor = torch.cat(_gathered(tensor, engine._experts._group))
    if (cut := engine._tensor._cuts.get(name)) is None:
        return tensor
    ranks = _gathered(tensor, engine._tensor._group)
    stacks = zip(*(rank.chunk(cut.stacked, cut.dim) for rank in ranks), strict=True)
    return torch.cat([torch.cat(stack, cut.dim) for stack in stacks], cut.dim)


def of_stages(engine: Any, tensors_of: Callable[[nn.Module], Named]) -> Named:
    """Yields the whole tensors of the model, or of all a pipeline's stages on every rank, a tied table once.

    `tensors_of` yields the whole tensors of one module by their names in the plain model.
    """
    pipeline = engine._pipeline
    if pipeline is None:
        yield from tensors_of(engine.module)
        return
    skipped = f"{architecture_of(engine.recipe.model.architecture).head}.weight"
    for index in range(pipeline._parts[0].stage.num_stages):
        source = index % dist.get_world_size(pipeline._group)
        part = next((own_part for own_part in pipeline._parts if own_part.stage.index == index), None)
        tensors = iter(()) if part is None else tensors_of(part.module)
        while True:
            name, tensor = next(tensors, ("", None))
            if part is not None and part.stage.has_head and pipeline.has_second_copy and name == skipped:
                continue
            facts: list[Any] = [None if tensor is None else (name, tensor.shape, tensor.dtype)]
            dist.broadcast_object_list(facts, group=pipeline._group, group_src=source)
            if facts[0] is None:
                break
            name, shape, dtype = facts[0]
            received = torch.empty(shape, dtype=dtype, device=engine.device) if tensor is None else tensor.contiguous()
            dist.broadcast(received, group=pipeline._group, group_src=source)
            yield name, received


def _weights_of(engine: Any, module: nn.Module) -> Named:
    for name, parameter in module.named_parameters():
        yield plain_name(name), whole(engine, plain_name(name), parameter.detach())


def _deepspeed_weights(engine: Any) -> Named:
    for name, parameter in engine._engine.module.named_parameters():
        full = parameter.detach() if engine.layout.zero_stage == 0 else safe_get_full_fp32_param(parameter)
        assert full is not None
        # DeepSpeed may return fp32 for 16-bit masters.
        yield plain_name(name), full.to(state_dtype(engine.recipe))


def _gathered(part: torch.Tensor, group: Any) -> list[torch.Tensor]:
    ranks = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(ranks, part.contiguous(), group=group)
    return ranks
