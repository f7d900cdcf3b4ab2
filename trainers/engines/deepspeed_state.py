"""Reads and fills the state of DeepSpeed's optimizers, which wrap torch's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from trainers.engines.deepspeed_library import BF16_Optimizer, DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3


def cut(wrapper: Any, parameter: Any) -> tuple[int, int, int, int, tuple[int, ...]]:
    """Returns this rank's master weights of a parameter: group index, first index in the group's flat tensor, number,
    first index in the flattened parameter, and the parameter's shape.
    """
    if isinstance(wrapper, DeepSpeedZeroOptimizer_Stage3):
        group, first, size = wrapper.grad_position[wrapper.get_param_id(parameter)]
        start = size * dist.get_rank(wrapper.dp_process_group)  # the last ranks' parts end with padding
        return group, first, max(0, min(size, parameter.ds_numel - start)), start, tuple(parameter.ds_shape)
    mapping = parameter._hp_mapping
    if mapping is None:
        return 0, 0, 0, 0, tuple(parameter.shape)
    master_place, working_place = mapping.hp_fragment_address, mapping.lp_fragment_address
    return (
        mapping.param_group_index,
        master_place.start,
        master_place.numel,
        working_place.start,
        tuple(parameter.shape),
    )


def cut_modules_from_masters(wrapper: Any, module: nn.Module) -> None:
    """Fills stage 3's sharded parameters from the master weights, and gathers again its whole parameters."""
    persistent = wrapper.persistent_parameters
    if persistent:
        persistent[0].partition(persistent)
    for parameter in cast(Iterator[Any], module.parameters()):
        group, first, size = wrapper.grad_position[wrapper.get_param_id(parameter)]
        parameter.ds_tensor.data.copy_(wrapper.fp32_partitioned_groups_flat[group].detach().narrow(0, first, size))
    if persistent:
        persistent[0].all_gather(persistent)


def decays_of(wrapper: Any, groups: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]] | None:
    """Returns each parameter's number of dimensions and weight decay. `groups` are the optimizer's, which hold flat
    master weights. None at stage 0, whose groups hold the parameters themselves.
    """
    name = next((name for name in ("bit16_groups", "bf16_groups", "fp16_groups") if hasattr(wrapper, name)), None)
    if name is None:
        return None
    group_of: Mapping[int, int] = getattr(wrapper, "sub_group_to_group_id", {})
    return [
        (len(getattr(parameter, "ds_shape", parameter.shape)), groups[group_of.get(number, number)]["weight_decay"])
        for number, parameters in enumerate(getattr(wrapper, name))
        for parameter in parameters
    ]


def stage_of(wrapper: Any) -> int:
    """Returns the ZeRO stage of the running optimizer, whatever the configuration states."""
    if isinstance(wrapper, DeepSpeedZeroOptimizer_Stage3):
        return 3
    if isinstance(wrapper, DeepSpeedZeroOptimizer):
        return 2 if wrapper.partition_gradients else 1
    return 1 if isinstance(wrapper, BF16_Optimizer) else 0


def offload_of(wrapper: Any) -> str:
    """Returns which states the running optimizer holds in host memory; stages 1 and 2 have one flag for it, stage 3
    two.
    """
    if getattr(wrapper, "offload_param", False):
        return "all" if wrapper.offload_optimizer else "parameters"
    away = getattr(wrapper, "cpu_offload", False) or getattr(wrapper, "offload_optimizer", False)
    return "optimizer" if away else "none"


def masters_of(wrapper: Any) -> list[torch.Tensor]:
    """Returns the master weights of a ZeRO optimizer; empty at stage 0, whose modules hold the masters."""
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
        if hasattr(wrapper, name):
            return list(getattr(wrapper, name))
    return []
