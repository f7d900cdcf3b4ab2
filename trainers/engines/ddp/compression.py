"""What DDP's gradients are squeezed into before they are exchanged, by torch's own hooks.

PowerSGD (arXiv 1905.13727): each matrix of gradients, with what was left out of it so far (error feedback), is
approximated by two factors of a small rank, and the factors are exchanged; vectors, and matrices that the rank does not
make half as small, travel whole. Torch's hook waits for the device once a bucket.
"""

import sys
from typing import Any, cast

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from trainers.values.recipe import Recipe


class Compression:
    """The hook of one DDP module, its state made afresh: nothing of an earlier engine's errors or factors is in it.

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
        """An optimizer step is done."""
        if self._state is not None and self._state.start_powerSGD_iter == sys.maxsize:
            self._state.start_powerSGD_iter = self._state.iter

    def in_effect(self) -> str | None:
        """The recipe's word for what the module's hooks do; None for PowerSGD that has not begun."""
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
    """Torch's hook, under another name: DDP refuses it by its name on gloo, which sums bf16 as NCCL does."""
    return bf16_compress_hook(state, bucket)
