"""Runs a pipeline's micro-batches in the order of torch.distributed.pipelining's schedules.

Shapes of stages' inputs and outputs are stated, so that torch runs no forward pass to learn them. Torch would allocate
buffers for all micro-batches of a step at once, two hidden states per micro-batch and boundary. Here a buffer is
allocated for a receive and freed after the last pass that reads it.
"""

import contextlib
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

from trainers.spec.layout import Layout
from trainers.spec.stages import Stage

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A stage's function of hidden states and tokens [micro_batch, seq_len + 1]; returns hidden states, or the mean loss if
the stage has the head.
"""


class ScheduledStage(PipelineStage):
    """A stage that runs `forward`, and asks before each backward pass whether it exchanges gradients."""

    def __init__(
        self,
        stage: Stage,
        *,
        module: nn.Module,
        forward: Forward,
        exchanges: Callable[[bool], bool],
        shapes: tuple[torch.Tensor, torch.Tensor],
        device: torch.device,
        group: Any,
    ) -> None:
        """Creates the stage. `exchanges` returns whether a backward pass exchanges gradients; its argument is True for
        a step's last pass. `shapes` are the stage's input and output on the meta device.
        """
        # Torch would gather all FSDP2 units in advance, at stage 3 too, so FSDP2 modules are hidden from it.
        submodule = module if isinstance(module, DistributedDataParallel) else nn.Module()
        super().__init__(submodule, stage.index, stage.num_stages, device, shapes[0], shapes[1], group=group)
        self._forward, self._exchanges = forward, exchanges

    def forward_maybe_with_nosync(self, stage_input: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        module: Any = self.submod
        # DDP is told before the backward pass; at this point passes of several micro-batches are in progress.
        quiet = module.no_sync() if isinstance(module, DistributedDataParallel) else contextlib.nullcontext()
        with quiet:
            return self._forward(stage_input, tokens)

    def backward_maybe_with_nosync(self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False):
        exchanges = self._exchanges(last_backward)
        gradients = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward=exchanges)
        if self.is_last:
            # Torch keeps losses until the step's end; with its graph a loss would keep the stage's input too.
            bwd_kwargs["stage_output"].detach_()
        return gradients

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_buffers():
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_buffers():
            return super()._prepare_backward_infra(*args, **kwargs)

    @contextlib.contextmanager
    def _without_buffers(self) -> Generator[None, None, None]:
        """Makes torch create its receive buffers on the meta device."""
        device, self.device = self.device, torch.device("meta")
        try:
            yield
        finally:
            self.device = device

    def _get_recv_ops(self, recv_infos: Any) -> Any:
        for info in recv_infos:
            if (buffer := getattr(info, "buffer", None)) is not None:
                info.buffer = torch.empty_like(buffer, device=self.device, requires_grad=buffer.requires_grad)
        return super()._get_recv_ops(recv_infos)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        return _released(super()._retrieve_recv_activations(fwd_chunk_id), self.args_recv_info[fwd_chunk_id])

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        return _released(super()._retrieve_recv_grads(bwd_chunk_id), self.grad_recv_info[bwd_chunk_id])

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Does nothing, because the last backward pass has exchanged gradients."""


def _released(received: Any, recv_infos: Any) -> Any:
    """Returns the received tensors and drops the references that `recv_infos` hold."""
    for info in recv_infos:
        if (buffer := getattr(info, "buffer", None)) is not None:
            info.buffer = torch.empty_like(buffer, device="meta", requires_grad=buffer.requires_grad)
    return received


class PipelineSchedule:
    """Runs a step's micro-batches of equal size through this rank's stages."""

    def __init__(
        self,
        stages: Sequence[ScheduledStage],
        layout: Layout,
        num_micro_batches: int,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Creates the schedule. `scaled` scales a micro-batch's mean loss before it is differentiated."""
        self._starts = any(stage.is_first for stage in stages)
        self._ends = any(stage.is_last for stage in stages)
        settings: dict[str, Any] = {"loss_fn": lambda loss, _: scaled(loss), "scale_grads": False}
        if layout.schedule == "interleaved":
            self._schedule: Any = ScheduleInterleaved1F1B(cast(Any, list(stages)), num_micro_batches, **settings)
        else:
            (stage,) = stages
            self._schedule = Schedule1F1B(stage, num_micro_batches, **settings)

    @property
    def in_effect(self) -> str:
        """The layout's name of the running schedule, or its class's name."""
        kind = type(self._schedule)
        return {Schedule1F1B: "1f1b", ScheduleInterleaved1F1B: "interleaved"}.get(kind, kind.__name__)

    def run(self, micro_batches: Sequence[torch.Tensor]) -> None:
        """Runs all micro-batches (int64 [micro_batch, seq_len + 1] each) forward and backward.

        Raises:
            Exception: a stage's forward or backward pass raised it.
        """
        tokens = torch.cat(list(micro_batches))
        arguments = (tokens[:, :-1],) if self._starts else ()
        options: dict[str, Any] = {"tokens": tokens} | ({"target": tokens} if self._ends else {})
        if "return_outputs" in inspect.signature(self._schedule.step).parameters:  # older torch always returns them
            options["return_outputs"] = False
        try:
            self._schedule.step(*arguments, **options)
        except RuntimeError as error:
            raise _original_error(error) from error.__context__


def _original_error(error: BaseException) -> BaseException:
    """Returns the stage's own error from torch's wrapping error, so that out-of-memory errors are recognised."""
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error
