"""An engine of a user's own, in one file: whole models, and gradients summed by one all-reduce for each parameter.

docs/your-engine.md shows it, a test searches with it by its import path (`tests/whole_searches/test_own_engine.py`),
and the contract compares it with the reference as it does this project's engines. Its rules and its runtime may be in
two files; then a driver does not import torch.
"""

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from trainers.engines.base import EngineRules, Model, TorchEngine

ENGINE = EngineRules(
    name=f"{__name__}:ENGINE",
    title="all-reduce by hand",
    runtime=f"{__name__}:AllReduceEngine",
    grad_syncs={0: ("last",)},
)


class AllReduceEngine(TorchEngine):
    """An engine that sums gradients over micro-steps and averages them over ranks after a step's last backward pass."""

    def lay_out(self, model: Model) -> nn.Module:
        self.fill_weights(model.module, model)
        return model.module

    @contextlib.contextmanager
    def syncing(self, sync: bool) -> Generator[bool, None, None]:
        yield sync
        for parameter in self.module.parameters() if sync else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def in_effect(self) -> Mapping[str, Any]:
        degrees = {"zero_stage": 0, "dp_replicate": dist.get_world_size(), "dp_shard": 1, "offload": "none"}
        return {**super().in_effect(), **degrees, "compute_precision": self.precision_in_effect()}
