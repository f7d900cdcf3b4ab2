"""FSDP2 (`fully_shard`): sharded master weights, gathered in the compute type while a block runs."""

# The settings in effect are in private attributes only.
# pyright: reportPrivateUsage=false

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainers.distributed.state import StateTensor, TensorPart
from trainers.engines.host_moments import offload_in_effect
from trainers.engines.settings import dtype_name, half_dtype, state_dtype
from trainers.engines.torch_engine import ShardedScaler, TorchEngine
from trainers.mesh.expert_parallel import experts_of
from trainers.models import float8
from trainers.models.model import Model
from trainers.spec.engines.engine_axis import axes_of_engine
from trainers.spec.engines.fsdp import FsdpAxis


class FsdpEngine(TorchEngine):
    """Runs FSDP2 with a unit per block and one for the rest (embeddings, last norm, head). Experts under expert
    parallelism are an additional unit in their block, sharded over the ranks that have the same experts.

    Stage 3 frees a block's parameters after its forward pass and gathers them again for the backward pass; stage 2
    keeps them, from one micro-step to the next too. Both keep the outer unit, because the backward pass begins with it.
    Gradients are reduced, and with `grad_sync` "last" accumulated, in the states' type (fp32 or bf16): with "last"
    whole on every rank, with "every" as reduced shards. With `dp_replicate` above 1 every shard group is a replica
    (HSDP).

    With `offload` "all" shards of weights, gradients and AdamW's states are in pinned host memory: weights are copied
    to the device to be gathered, reduced gradients are copied back, and the host steps. The norm is summed over ranks
    on the device, because NCCL has no collectives for host memory. With "moments" only AdamW's moments are there
    (`host_moments`), and the device steps.
    """

    module: Any  # an FSDPModule, which is still the transformers model
    _axes = cast(Mapping[str, FsdpAxis], axes_of_engine("fsdp"))

    def lay_out(self, model: Model) -> nn.Module:
        recipe, layout = self.recipe, self.layout
        mesh = self._mesh.shards()
        apart = self._mesh.expert_shards() if self._experts.size > 1 else None
        # Frozen weights are stored in the products' type, and adapters cast their own weights.
        cast_to = None if recipe.adapter_rank else half_dtype(recipe)
        policy = MixedPrecisionPolicy(param_dtype=cast_to, reduce_dtype=state_dtype(recipe))
        units: tuple[Any, ...] = model.units
        offload = (
            CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if layout.offload == "all" else OffloadPolicy()
        )
        if recipe.is_quantised:
            _take_integers()
        wrapping: dict[str, Any] = {"reshard_after_forward": layout.zero_stage == 3}
        for axis in self._axes.values():
            wrapping |= axis.wrapping(layout)
        # A unit is materialised whole and sharded at once, so that a rank never holds more than its shards and one
        # unit.
        for unit in (*units, model.module):
            self.fill_weights(unit, model)
            options = {} if unit is model.module else wrapping
            if unit is not model.module:
                float8.convert(unit, recipe, self.device, gathered=True)
                for _, experts in experts_of(model, unit) if apart is not None else ():
                    fully_shard(experts, mesh=apart, mp_policy=policy, offload_policy=offload, **options)
            fully_shard(unit, mesh=mesh, mp_policy=policy, offload_policy=offload, **options)
        for axis in self._axes.values():
            axis.lay_out(units, layout)
        return model.module

    @torch.no_grad()
    def _stepped(self) -> list[nn.Parameter]:
        """Returns the rank's shards as plain tensors; stepping GPT-2 XL's 580 DTensors took the host 40 to 60 ms."""
        self._parameters = cast(list[Any], super()._stepped())
        self._shards = [nn.Parameter(_local(parameter), requires_grad=False) for parameter in self._parameters]
        return self._shards

    def _make_scaler(self) -> torch.amp.GradScaler:
        return ShardedScaler(self.device.type)

    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        self._free_after_backward(self.module, last)
        self._tell_axes(last)
        return super()._micro_step(tokens, last=last)

    def _tell_axes(self, last: bool) -> None:
        for axis in self._axes.values():
            axis.before_pass(self._units, self.layout, last=last)

    def _free_after_backward(self, module: Any, last: bool) -> None:
        # Weights change only with the step, so parameters that stay whole between the two passes are not gathered
        # again.
        module.set_reshard_after_backward(last, recurse=self.layout.zero_stage == 2)

    def _hidden_dtype(self) -> torch.dtype:
        return half_dtype(self.recipe) or torch.float32

    def _exchanges(self, module: Any, last: bool) -> bool:
        self._free_after_backward(module, last)
        module.set_requires_gradient_sync(last)
        if module is self._modules[0]:
            self._syncs.append(all(group.reduce_grads for group in _groups(self._models[0])))
        return last

    @contextlib.contextmanager
    def syncing(self, sync: bool) -> Generator[bool, None, None]:
        # `set_is_last_backward` stays True: each micro-step is a complete forward and backward pass, and the order of
        # units kept for prefetching would otherwise continue from one micro-step into the next.
        self.module.set_requires_gradient_sync(sync)
        yield all(group.reduce_grads for group in _groups(self._models[0]))

    @torch.no_grad()
    def _optimizer_step(self) -> torch.Tensor:
        for parameter, shard in zip(self._parameters, self._shards, strict=True):
            shard.data = _local(parameter)  # FSDP2 may reallocate a shard before the first pass
            shard.grad = None if parameter.grad is None else parameter.grad.to_local()
        norm = super()._optimizer_step()
        self._tell_axes(False)  # what is read back between steps is what holds from one micro-step to the next
        float8.prepare_step(self.module, self.recipe)
        return norm

    def _clear_gradients(self) -> None:
        super()._clear_gradients()
        for parameter in self._parameters:
            parameter.grad = None

    def computing(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def _norm_group(self) -> Any:
        return self._mesh.group("pp", "dp_shard", "cp", "tp")

    def _placed(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, Callable[[torch.Tensor], StateTensor]]]:
        for name, parameter, shard in zip(self._names, self._parameters, self._shards, strict=True):
            yield name, shard, *self._place_of(parameter)

    def _place_of(self, parameter: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], StateTensor]]:
        return _local(parameter), functools.partial(self._as_shard_of, parameter)

    def _as_shard_of(self, parameter: DTensor, local: torch.Tensor) -> StateTensor:
        """Returns `local` as a tensor distributed like the parameter's shard on this rank."""
        mesh = parameter.device_mesh
        _, offsets = compute_local_shape_and_global_offset(parameter.shape, mesh, parameter.placements)
        replicas = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True)).get("dp_replicate", 1)
        return StateTensor(
            shape=tuple(parameter.shape),
            parts=(TensorPart(offsets=tuple(offsets), tensor=local.detach()),) if local.numel() else (),
            replica=mesh.get_local_rank("dp_replicate") if replicas > 1 else 0,
            num_replicas=replicas,
        )

    @property
    def _units(self) -> list[Any]:
        """The blocks of all models."""
        return [unit for model in self._models for unit in model.units]

    def in_effect(self) -> Mapping[str, Any]:
        units = self._units
        groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
        frees = {group.post_forward_mesh_info is not None for group in groups}
        everything = [group for model in self._models for group in _groups(model)]
        policies = {group.mp_policy for group in everything}
        casts = sorted(dtype_name(policy.param_dtype) for policy in policies if policy.param_dtype)
        reduce = "+".join(sorted(dtype_name(policy.reduce_dtype or torch.float32) for policy in policies))
        mesh = everything[0].mesh_info.mesh  # parameters may be unsharded now
        degrees = {"dp_replicate": 1} | dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
        degrees["dp_shard"] //= self._context.in_effect(self._models)  # context-parallel ranks share the shards
        away = {isinstance(group.offload_policy, CPUOffloadPolicy) for group in everything}
        kind = type(self._modules[0])
        return {
            **degrees,
            **super().in_effect(),
            "engine": "fsdp" if issubclass(kind, FSDPModule) else kind.__name__,
            "zero_stage": {frozenset({True}): 3, frozenset({False}): 2}.get(frozenset(frees)),
            "offload": {frozenset({True}): "all", frozenset({False}): offload_in_effect(self._optimizer)}.get(
                frozenset(away), "some units"
            ),
            "units": sum(isinstance(module, FSDPModule) for module in self.module.modules()),
            **{name: axis.in_effect(units) for name, axis in self._axes.items()},
            "reduce_precision": reduce,
            "compute_precision": float8.precision_in_effect(self._models, "+".join(casts))
            if casts
            else self.precision_in_effect(),
        }

    def close(self) -> None:
        super().close()
        del self._parameters, self._shards


class _Modules:
    """`torch.nn` with a `Parameter` that has no gradient by default if its values are integers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)

    def Parameter(self, data: torch.Tensor, requires_grad: bool | None = None) -> nn.Parameter:
        return nn.Parameter(data, data.is_floating_point() if requires_grad is None else requires_grad)


def _take_integers() -> None:
    """Makes FSDP2 shard integer parameters. torch 2.11 creates each shard with a gradient, which integers cannot have,
    before it disables it (pytorch/pytorch#177844).
    """
    setattr(_fsdp_param, "nn", _Modules())  # noqa: B010  # type checkers treat a module's attribute as constant


def _local(parameter: DTensor) -> torch.Tensor:
    return float8.plain(parameter.to_local())


def _groups(model: Model) -> Iterator[Any]:
    """Yields the groups of parameters that FSDP2 gathers together, unit by unit, a block's before its experts'; a
    pipeline stage may have no group outside its blocks.
    """
    for module in model.module.modules():
        if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group) is not None:
            yield group
