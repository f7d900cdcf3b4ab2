"""PyTorch DistributedDataParallel: a whole model on every rank, autocast for 16-bit products over fp32 weights."""

import contextlib
import functools
import time
import warnings
from collections.abc import Generator, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.distributed.state import Counters
from trainers.engines.ddp_compression import Compression
from trainers.engines.ddp_graphs import MicroStepGraphs
from trainers.engines.host_moments import offload_in_effect
from trainers.engines.torch_engine import TorchEngine
from trainers.models import float8
from trainers.models.model import Model
from trainers.spec.engines.ddp import DdpAxis
from trainers.spec.engines.engine_axis import axes_of_engine
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_WATCHDOG_S = 0.3
"""Seconds after which NCCL's watchdog has seen a finished collective."""

_EXCHANGES_BEFORE_CAPTURE = 11
"""Number of backward passes with an exchange before a capture; DDP takes times within the first ten."""


class DdpEngine(TorchEngine):
    """Runs DDP. Gradients are views into the all-reduce buckets; they are zeroed instead of freed, so each exists once.

    Gradients become views only in a backward pass that exchanges them. So the first step exchanges at every micro-step,
    whatever the layout says, with the same sum. After its first exchange DDP reorders its buckets and copies gradients
    from the old ones into a second set. So the first micro-batch runs twice, and the gradients of its first pass are
    dropped. Only a pipeline holds a second set within its first step, as several passes of one step would disturb the
    order.

    Gradients have the weights' type. With bf16 states weights are bf16 too, nothing is cast, and micro-steps are summed
    in the bf16 buckets, which are all-reduced in bf16.

    With `offload` "moments" AdamW's moments are in pinned host memory, and the device steps (`host_moments`).

    If CUDA graphs replay micro-steps, the first step for each shape of tokens still launches kernels one by one, to
    compile and to measure memory; the second step captures.
    """

    _axes = cast(Mapping[str, DdpAxis], axes_of_engine("ddp"))
    _compressions: tuple[Compression, ...] = ()
    _graphs: MicroStepGraphs | None = None
    module: Any  # a DistributedDataParallel, or several

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        if any(axis.replays(layout) for axis in self._axes.values()):
            self._graphs = MicroStepGraphs(device)
            self._divisor = torch.ones((), device=device)
        self._shape = torch.Size()
        self._steps_of_shape = 0
        self._exchanged = 0
        super().__init__(recipe, layout, device)
        self._casts = float8.KeptCasts(self._modules)
        self._casts.renew()

    def lay_out(self, model: Model) -> nn.Module:
        self.fill_weights(model.module, model)
        keeps_casts = any(axis.keeps_casts(self.layout) for axis in self._axes.values())
        for unit in model.units:
            float8.convert(unit, self.recipe, self.device, gathered=False, keeps_casts=keeps_casts)
        self._views = False
        self._ordered = False
        # All ranks draw the same weights, so no initial broadcast is needed; buffers never change.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames `broadcast_buffers`
            module = DistributedDataParallel(
                model.module,
                process_group=self._mesh.group("dp_replicate", "cp"),
                gradient_as_bucket_view=True,
                broadcast_buffers=False,
                init_sync=False,
                bucket_cap_mb=self._bucket_mib(model.module),
            )
        self._compressions = (*self._compressions, Compression(module, self.recipe))
        return module

    def _bucket_mib(self, module: nn.Module) -> float | None:
        """Returns the bucket size in MiB; None for torch's default. For PowerSGD over gloo without a stated size it is
        one bucket: torch's hook blocks one of gloo's two threads for each bucket, so several would wait for each other.
        """
        if not self.layout.bucket_mib and self.recipe.powersgd_rank and self.device.type == "cpu":
            return 1 + sum(parameter.numel() * parameter.element_size() for parameter in module.parameters()) / 2**20
        return self.layout.bucket_mib or None

    def _exchanges(self, module: nn.Module, last: bool) -> bool:
        if module is self._modules[0]:
            self._syncs.append(last)
        return last

    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        if not self._ordered:
            self._ordered = True
            super()._micro_step(tokens, last=True)
            self._optimizer.zero_grad(set_to_none=True)
            self._balance.forget()
            self._syncs.clear()
            self._release_buckets()
        if self._graphs is None or not self._is_replayed(self._graphs, tokens):
            return super()._micro_step(tokens, last=last)
        exchange = last or self.layout.grad_sync == "every"
        if exchange not in self._graphs.exchanging:
            self._graphs.capture(functools.partial(self._unnoted_micro_step, last=exchange), exchange=exchange)
        self._syncs.append(exchange)
        return self._graphs.replay(tokens, exchange=exchange)

    def _is_replayed(self, graphs: MicroStepGraphs, tokens: torch.Tensor) -> bool:
        """Returns whether a micro-step on `tokens` is replayed from a graph instead of launched kernel by kernel."""
        if tokens.shape != self._shape:
            self._shape, self._steps_of_shape = tokens.shape, 0
            graphs.forget(tokens.shape)
        if not self._steps_of_shape:
            return False
        if not self._syncs and self._exchanged < _EXCHANGES_BEFORE_CAPTURE:  # a step begins: gradients are zero
            while self._exchanged < _EXCHANGES_BEFORE_CAPTURE:
                self._unnoted_micro_step(tokens, last=True)
            self._optimizer.zero_grad(set_to_none=False)
        return True

    def _unnoted_micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        """Runs a micro-step that does not belong to the current step."""
        loss = super()._micro_step(tokens, last=last)
        self._syncs.pop()
        return loss

    def _set_grad_accum(self, grad_accum: int) -> None:
        super()._set_grad_accum(grad_accum)
        if self._graphs is not None:
            self._divisor.fill_(grad_accum)

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        # A graph reads the divisor at each replay; a Python number would stay as captured.
        return super()._scaled(loss) if self._graphs is None else loss / self._divisor

    def _release_buckets(self) -> None:
        """Makes NCCL release the buckets that it has reduced. It holds them until its watchdog, which polls every 0.1
        s, has seen the end and another collective starts (torch's `ProcessGroupNCCL::workEnqueue`).
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            time.sleep(_WATCHDOG_S)
            torch.distributed.all_reduce(torch.zeros(1, device=self.device), group=self.module.process_group)

    @contextlib.contextmanager
    def syncing(self, sync: bool) -> Generator[bool, None, None]:
        with contextlib.nullcontext() if sync or not self._views else self.module.no_sync():
            self._exchanged += self.module.require_backward_grad_sync
            yield self.module.require_backward_grad_sync

    def _optimizer_step(self) -> torch.Tensor:
        norm = super()._optimizer_step()
        self._casts.renew()
        return norm

    def _clear_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=False)
        for compression in self._compressions:
            compression.stepped()
        if not self._views:
            self._syncs = []
            self._views = True
        self._steps_of_shape += 1

    def adopt(self, counters: Counters) -> None:
        """Continues from `counters`. Runs a backward pass and discards its gradients, so that gradients are views and
        buckets are ordered as in the saved engine, and sums of the next step have the same bits.
        """
        super().adopt(counters)
        self._casts.renew()
        if not counters.optimizer_step:
            return  # as before a first step
        tokens = torch.zeros((1, self.recipe.seq_len + 1), dtype=torch.int64, device=self.device)
        if self._pipeline is None:
            self._micro_step(tokens, last=True)
        else:
            self._pipeline.run([tokens] * self.layout.pp)
        self._clear_gradients()

    def in_effect(self) -> Mapping[str, Any]:
        first: Any = self._modules[0]
        ranks = torch.distributed.get_world_size(first.process_group)
        casts = float8.casts_in_effect(self._models, self._casts)
        return {
            **super().in_effect(),
            "engine": "ddp" if type(first) is DistributedDataParallel else type(first).__name__,
            "zero_stage": 0,
            "dp_replicate": ranks // self._context.in_effect(self._models),
            "dp_shard": 1,
            "offload": offload_in_effect(self._optimizer),
            "bucket_mib": first.bucket_bytes_cap // 2**20,
            "compression": self._compressions[0].in_effect(),
            **{name: axis.in_effect(self._replays_in_effect(), casts) for name, axis in self._axes.items()},
            "compute_precision": self.precision_in_effect(),
        }

    def _replays_in_effect(self) -> bool | None:
        """Returns whether micro-steps are replayed; None before the step that captures them."""
        if self._graphs is None:
            return False
        return bool(self._graphs.exchanging) if self._steps_of_shape > 1 else None

    def forget_graphs(self) -> None:
        self._shape = torch.Size()

    def close(self) -> None:
        super().close()
        del self._casts
        if self._graphs is not None:
            self._graphs.close()
