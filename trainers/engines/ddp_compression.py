"""Compression of DDP's gradients: in bf16, and by PowerSGD."""

import sys
from typing import Any, Protocol, cast

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from trainers.spec.engines.ddp import PIECE_VALUES
from trainers.spec.recipe import Recipe


class Compression:
    """Compresses one DDP module's gradients before they are exchanged. Its state is new: nothing of an earlier
    engine's errors or factors is in it.
    """

    def __init__(self, module: DistributedDataParallel, recipe: Recipe) -> None:
        self._module = module
        self._factored: _FactoredExchange | None = None
        if recipe.powersgd_rank:
            self._factored = _FactoredExchange(cast(Any, module.process_group), recipe.powersgd_rank)
            module.register_comm_hook(self._factored, _hook)
        elif recipe.compression == "bf16":
            module.register_comm_hook(_Bf16Exchange(cast(Any, module.process_group)), _hook)

    def stepped(self) -> None:
        """Counts a finished optimizer step."""
        if self._factored is not None:
            self._factored.begin()

    def in_effect(self) -> str | None:
        """Returns the recipe's word for what the module's hooks do; None for PowerSGD that has not begun."""
        hooks: list[tuple[Any, Any]] = getattr(self._module, "_comm_hooks")  # noqa: B009  # stands in no public place
        if not hooks:
            return "none"
        if [hook for hook, _ in hooks] == [_hook]:
            return cast(_Exchange, hooks[0][1]).in_effect
        return "+".join(getattr(hook, "__name__", repr(hook)) for hook, _ in hooks)


class _Exchange(Protocol):
    """Averages the buckets of one module's gradients over a process group."""

    @property
    def in_effect(self) -> str | None:
        """The recipe's word for what the exchange does; None before it does so."""
        ...

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the exchange of a bucket, which holds the mean once the future is done."""
        ...


def _hook(exchange: _Exchange, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return exchange(bucket)


class _FactoredExchange:
    """Averages a bucket by PowerSGD (arXiv 1905.13727): each matrix of gradients, with what was left out of it so far
    (error feedback), is approximated by two factors of a small rank, and the factors are exchanged; vectors, and
    matrices that the rank does not make half as small, travel whole. Torch's hook waits for the device once a bucket.

    DDP puts its buckets in order after the first exchange, and errors are kept by bucket: PowerSGD begins with the
    second optimizer step. The first one's gradients travel whole, whatever the number of micro-steps.

    Torch's own error feedback makes two new tensors of each bucket's size in every step, one of them on a stream that
    differs from step to step, whose memory the allocator keeps for that stream: BLOOM-7b1 reserved 128 GiB where 92
    were allocated, then 135 with allocator retries (docs/lab/layouts.csv#four-h200-powersgd.3). Here each bucket's
    errors stay in one tensor, with the same values.
    """

    def __init__(self, group: torch.distributed.ProcessGroup, rank: int) -> None:
        self._state = PowerSGDState(
            process_group=group,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=sys.maxsize,
            use_error_feedback=False,
            # A matrix without gradients has columns of zeros. Torch annotates its default, 0.
            orthogonalization_epsilon=cast(Any, 1e-8),
        )
        self.errors: dict[int, torch.Tensor] = {}
        """The errors of the last exchange by bucket index: the gradients sent minus the mean received."""

    @property
    def in_effect(self) -> str | None:
        return f"powersgd_{self._state.matrix_approximation_rank}" if self.errors else None

    def begin(self) -> None:
        """Lets the next exchange factor gradients, if none has yet."""
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
    """Averages a bucket of gradients over a process group in bf16, beside the backward pass.

    Torch's own hook has a bf16 copy of all gradients at once, through the optimizer's step too: NCCL's process group
    holds each bucket's until its watchdog has looked and a further collective begins (74.1 GiB in place of 60.9 for
    BLOOM-7b1); and in the first pass all gradients are one bucket. Here a bucket is exchanged in pieces on one stream,
    where a piece's copy takes the memory of the one before it.
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
            future.set_result(gradients)  # records an event of this stream, for which DDP's stream waits
        return future

    def _average(self, gradients: torch.Tensor) -> None:
        for piece in gradients.split(PIECE_VALUES):
            copy = piece.to(torch.bfloat16).div_(self._group.size())
            torch.distributed.all_reduce(copy, group=self._group)
            piece.copy_(copy)
