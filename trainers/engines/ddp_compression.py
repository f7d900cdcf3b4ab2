"""Compression of DDP's gradients: bf16 or PowerSGD."""

import sys
from typing import Any, Protocol, cast

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from trainers.spec.engines.ddp import PIECE_VALUES
from trainers.spec.recipe import Recipe


class Compression:
    """Compresses one DDP module's gradients before the exchange. Errors and factors start empty for each engine."""

    def __init__(self, module: DistributedDataParallel, recipe: Recipe) -> None:
        self._module = module
        self._factored: _FactoredExchange | None = None
        if recipe.powersgd_rank:
            self._factored = _FactoredExchange(cast(Any, module.process_group), recipe.powersgd_rank)
            module.register_comm_hook(self._factored, _hook)
        elif recipe.compression == "bf16":
            module.register_comm_hook(_Bf16Exchange(cast(Any, module.process_group)), _hook)

    def stepped(self) -> None:
        if self._factored is not None:
            self._factored.begin()

    def in_effect(self) -> str | None:
        """Returns the recipe's name for the module's compression; None before PowerSGD has started."""
        hooks: list[tuple[Any, Any]] = getattr(self._module, "_comm_hooks")  # noqa: B009  # has no public accessor
        if not hooks:
            return "none"
        if [hook for hook, _ in hooks] == [_hook]:
            return cast(_Exchange, hooks[0][1]).in_effect
        return "+".join(getattr(hook, "__name__", repr(hook)) for hook, _ in hooks)


class _Exchange(Protocol):
    """Averages the gradient buckets of one module over a process group."""

    @property
    def in_effect(self) -> str | None:
        """The recipe's name for the compression; None before it has started."""
        ...

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the exchange of a bucket; the future resolves to the mean."""
        ...


def _hook(exchange: _Exchange, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return exchange(bucket)


class _FactoredExchange:
    """Averages a bucket by PowerSGD (arXiv 1905.13727). Each matrix of gradients, plus the error left from earlier
    steps (error feedback), is approximated by two low-rank factors, which are exchanged. Vectors, and matrices that
    factors would not halve in size, are exchanged whole. Torch's hook synchronises with the device once per bucket.

    Errors are kept per bucket, and DDP reorders buckets after the first exchange, so PowerSGD starts with the second
    optimizer step. The first step's gradients are exchanged whole, whatever the number of micro-steps.

    Torch's error feedback creates two tensors of each bucket's size in every step, one of them on a changing stream,
    whose memory the allocator keeps for that stream: BLOOM-7b1 reserved 128 GiB with 92 allocated, then 135 with
    allocator retries (docs/lab/layouts.csv#four-h200-powersgd.3). This class keeps each bucket's errors in one tensor,
    with the same values.
    """

    def __init__(self, group: torch.distributed.ProcessGroup, rank: int) -> None:
        self._state = PowerSGDState(
            process_group=group,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=sys.maxsize,
            use_error_feedback=False,
            # Avoids division by zero for matrices without gradients. Torch annotates this argument as int.
            orthogonalization_epsilon=cast(Any, 1e-8),
        )
        self.errors: dict[int, torch.Tensor] = {}
        """Errors of the last exchange by bucket index: the gradients sent minus the mean received."""

    @property
    def in_effect(self) -> str | None:
        return f"powersgd_{self._state.matrix_approximation_rank}" if self.errors else None

    def begin(self) -> None:
        """Starts to factor gradients with the next exchange, unless already started."""
        if self._state.start_powerSGD_iter == sys.maxsize:
            self._state.start_powerSGD_iter = self._state.iter

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self._state.iter < self._state.start_powerSGD_iter:
            return powerSGD_hook(self._state, bucket)
        gradients = bucket.buffer()
        errors = self.errors.get(bucket.index())
        if errors is None:
            errors = self.errors[bucket.index()] = gradients.clone()
        else:
            errors.copy_(gradients.add_(errors))

        def note_errors(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            mean = future.value()
            errors.sub_(mean)
            return mean

        return powerSGD_hook(self._state, bucket).then(note_errors)


class _Bf16Exchange:
    """Averages a bucket of gradients over a process group in bf16, concurrently with the backward pass.

    Torch's own hook holds a bf16 copy of all gradients during the optimizer step too, because NCCL's process group
    keeps each bucket's copy until its watchdog has polled and another collective starts (74.1 GiB instead of 60.9 for
    BLOOM-7b1). In the first pass all gradients are one bucket as well. This class exchanges a bucket in pieces on one
    stream, where the copy of a piece reuses the memory of the previous one.
    """

    def __init__(self, group: torch.distributed.ProcessGroup) -> None:
        self._group = group
        self._stream: torch.cuda.Stream | None = None

    @property
    def in_effect(self) -> str:
        return "bf16"

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        if gradients.device.type != "cuda":
            self._average(gradients)
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(gradients)
            return future
        if self._stream is None:
            self._stream = torch.cuda.Stream(gradients.device)
        self._stream.wait_stream(torch.cuda.current_stream(gradients.device))
        with torch.cuda.stream(self._stream):
            self._average(gradients)
            future = torch.futures.Future(devices=[gradients.device])
            future.set_result(gradients)  # records an event of this stream; DDP's stream waits for it
        return future

    def _average(self, gradients: torch.Tensor) -> None:
        for piece in gradients.split(PIECE_VALUES):
            copy = piece.to(torch.bfloat16).div_(self._group.size())
            torch.distributed.all_reduce(copy, group=self._group)
            piece.copy_(copy)
