"""An engine of a user's own, in one file: whole models, and gradients summed by one all-reduce for each parameter.

A test searches with it by its import path (`tests/whole_searches/test_own_engine.py`), and the contract compares it
with the reference as it does this project's engines. Its rules and its runtime may be in two files; then a driver does
not import torch.
"""

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainers.engines.settings import dtype_name, half_dtype, matmul_precision, state_dtype
from trainers.engines.torch_engine import TorchEngine
from trainers.models import weights
from trainers.models.model import Model
from trainers.spec.engines.rules import EngineRules

ENGINE = EngineRules(
    name=f"{__name__}:ENGINE",
    title="all-reduce by hand",
    runtime=f"{__name__}:AllReduceEngine",
    grad_syncs={0: ("last",)},
)


class AllReduceEngine(TorchEngine):
    """An engine that sums gradients over micro-steps and averages them over ranks after a step's last backward pass."""

    def _lay_out(self, model: Model) -> nn.Module:
        weights.materialise(
            model.module,
            names=model.names,
            seed=self._recipe.seed,
            std=self._recipe.model.init_std,
            device=self._device,
            dtype=state_dtype(self._recipe),
            norm_start=self._recipe.model.norm_start,
        )
        return model.module

    @contextlib.contextmanager
    def _syncing(self, sync: bool) -> Generator[bool, None, None]:
        yield sync
        for parameter in self._module.parameters() if sync else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        dtype = half_dtype(self._recipe)
        if dtype in (None, state_dtype(self._recipe)):
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=dtype)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def in_effect(self) -> Mapping[str, Any]:
        half = half_dtype(self._recipe)
        return {
            **super().in_effect(),
            "zero_stage": 0,
            "dp_replicate": dist.get_world_size(),
            "dp_shard": 1,
            "offload": "none",
            "compute_precision": dtype_name(half) if half else matmul_precision(),
        }
