"""Torch's DistributedDataParallel: a whole model on every rank, autocast for 16-bit products over fp32 weights."""

import contextlib
import sys
import time
import warnings
from collections.abc import Generator, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from trainers import weights
from trainers.engines._settings import dtype_name, half_dtype, matmul_precision, state_dtype
from trainers.engines._torch import TorchEngine
from trainers.engines.state import Counters
from trainers.kernels import float8
from trainers.models import Model
from trainers.values.recipe import Recipe

_WATCHDOG_S = 0.3
"""Seconds within which NCCL's watchdog has looked at what has ended."""


class DdpEngine(TorchEngine):
    """Runs DDP. Gradients are views into the all-reduce buckets and are zeroed, never dropped, so that they exist once.

    They only become views in a backward pass that exchanges them; so the first step exchanges at every micro-step
    whatever the layout says, which gives the same sum. After its first exchange DDP orders its buckets anew and copies
    gradients from the old ones into a second set; so the first micro-batch is run twice, and the gradients of its first
    pass are dropped. A pipeline alone has a second set within its first step: several passes of one step would disturb
    the order.

    Gradients have the weights' type. Where states are bf16, weights are, nothing is cast, and micro-steps are added up
    in the bf16 buckets, which are then all-reduced in bf16.
    """

    _compressions: tuple["_Compression", ...] = ()
    _module: Any  # a DistributedDataParallel, or several

    def _lay_out(self, model: Model) -> nn.Module:
        recipe = self._recipe
        weights.materialise(
            model.module,
            names=model.names,
            seed=recipe.seed,
            std=recipe.model.init_std,
            device=self._device,
            dtype=state_dtype(recipe),
            cut=self._tensor.cut,
            norm_start=recipe.model.norm_start,
        )
        for unit in model.units:
            float8.convert(unit, recipe, self._device, gathered=False)
        self._views = False
        self._ordered = False
        # All ranks have drawn the same weights, so nothing need be sent at the start, and no buffer ever changes.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `broadcast_buffers` has a new name from torch 2.13 on
            module = DistributedDataParallel(
                model.module,
                process_group=self._mesh.group("dp_replicate", "cp"),
                gradient_as_bucket_view=True,
                broadcast_buffers=False,
                init_sync=False,
                bucket_cap_mb=self._layout.bucket_mib or None,
            )
        self._compressions = (*self._compressions, _Compression(module, recipe))
        return module

    def _exchanges(self, module: nn.Module, last: bool) -> bool:
        if module is self._modules[0]:
            self._syncs.append(last)
        return last

    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        if not self._ordered:
            self._ordered = True
            super()._micro_step(tokens, last=True)
            self._optimizer.zero_grad(set_to_none=True)
            self._syncs.clear()
            self._release_buckets()
        return super()._micro_step(tokens, last=last)

    def _release_buckets(self) -> None:
        """Lets NCCL give up the buckets that it has reduced. It holds them until its watchdog, which looks every
        tenth of a second, has seen the end, and a further collective begins (torch's `ProcessGroupNCCL::workEnqueue`).
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            time.sleep(_WATCHDOG_S)
            torch.distributed.all_reduce(torch.zeros(1, device=self._device), group=self._module.process_group)

    @contextlib.contextmanager
    def _syncing(self, sync: bool) -> Generator[bool, None, None]:
        with contextlib.nullcontext() if sync or not self._views else self._module.no_sync():
            yield self._module.require_backward_grad_sync

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        dtype = half_dtype(self._recipe)
        if dtype is None or dtype == state_dtype(self._recipe):
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=dtype)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _clear_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=False)
        for compression in self._compressions:
            compression.stepped()
        if not self._views:
            self._syncs = []
            self._views = True

    def adopt(self, counters: Counters) -> None:
        """Continues from counters; runs a backward pass whose gradients are discarded, after which gradients are views
        and buckets are in order, as they were where the state was saved, so that the sums of the next step have the
        same bits.
        """
        super().adopt(counters)
        if not counters.optimizer_step:
            return  # nor had the first step this
        tokens = torch.zeros((1, self._recipe.seq_len + 1), dtype=torch.int64, device=self._device)
        if self._pipeline is None:
            self._micro_step(tokens, last=True)
        else:
            self._pipeline.run([tokens] * self._layout.pp)
        self._clear_gradients()

    def in_effect(self) -> Mapping[str, Any]:
        with self._computing():
            matrix = torch.ones(8, 8, dtype=next(self._module.parameters()).dtype, device=self._device)
            product = (matrix @ matrix).dtype
        first: Any = self._modules[0]
        ranks = torch.distributed.get_world_size(first.process_group)
        return {
            **super().in_effect(),
            "engine": "ddp" if type(first) is DistributedDataParallel else type(first).__name__,
            "zero_stage": 0,
            "dp_replicate": ranks // self._context.in_effect(self._models),
            "dp_shard": 1,
            "offload": "none",
            "bucket_mib": first.bucket_bytes_cap // 2**20,
            "compression": self._compressions[0].in_effect(),
            "compute_precision": float8.precision_in_effect(
                self._models, matmul_precision() if product == torch.float32 else dtype_name(product)
            ),
        }


class _Compression:
    """Compresses one DDP module's gradients before they are exchanged, by torch's own hooks. Its state is new: nothing
    of an earlier engine's errors or factors is in it.

    PowerSGD (arXiv 1905.13727): each matrix of gradients, with what was left out of it so far (error feedback), is
    approximated by two factors of a small rank, and the factors are exchanged; vectors, and matrices that the rank does
    not make half as small, travel whole. Torch's hook waits for the device once a bucket.

    DDP puts its buckets in order after the first exchange, and PowerSGD keeps errors by bucket: it begins with the
    second optimizer step. The first one's gradients travel whole, whatever the number of micro-steps.
    """

    def __init__(self, module: DistributedDataParallel, recipe: Recipe) -> None:
        self._module = module
        self._state: PowerSGDState | None = None
        if recipe.powersgd_rank:
            self._state = PowerSGDState(
                process_group=module.process_group,
                matrix_approximation_rank=recipe.powersgd_rank,
                start_powerSGD_iter=sys.maxsize,
                # A matrix without gradients has columns of zeros. Torch annotates its default, 0.
                orthogonalization_epsilon=cast(Any, 1e-8),
            )
            module.register_comm_hook(self._state, powerSGD_hook)
        elif recipe.compression == "bf16":
            module.register_comm_hook(module.process_group, _bf16_hook)

    def stepped(self) -> None:
        """Counts a finished optimizer step."""
        if self._state is not None and self._state.start_powerSGD_iter == sys.maxsize:
            self._state.start_powerSGD_iter = self._state.iter

    def in_effect(self) -> str | None:
        """Returns the recipe's word for what the module's hooks do; None for PowerSGD that has not begun."""
        hooks: list[tuple[Any, Any]] = getattr(self._module, "_comm_hooks")  # noqa: B009  # stands in no public place
        if not hooks:
            return "none"
        names = [getattr(hook, "__name__", repr(hook)) for hook, _ in hooks]
        if names == [_bf16_hook.__name__]:
            return "bf16"
        state = hooks[0][1]
        if names == [powerSGD_hook.__name__] and isinstance(state, PowerSGDState):
            return f"powersgd_{state.matrix_approximation_rank}" if state.error_dict else None
        return "+".join(names)


def _bf16_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Calls torch's hook under another name: DDP refuses it by its name on gloo, which sums bf16 as NCCL does."""
    return bf16_compress_hook(state, bucket)
