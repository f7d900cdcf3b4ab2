"""Faults of expert parallelism. Most do not change the loss, so gradients and their norm must reveal them."""

# pyright: reportPrivateUsage=false

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch

from trainers.distributed import collectives
from trainers.distributed.groups import Mesh
from trainers.engines.balance import Balance
from trainers.kernels import dispatch
from trainers.mesh.expert_parallel import ExpertParallel


def _replaced(owner: Any, name: str, change: Callable[[Any], Any]) -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(owner, name, change(getattr(owner, name)))


def _twice(average: Any) -> Any:
    def changed(self: Any, gradients: Any) -> None:
        named = list(gradients)
        average(self, named)
        average(self, named)

    return changed


def _of_neighbour(self: Any, name: str, full: torch.Tensor) -> torch.Tensor:
    return full.chunk(self.size)[(self._rank + 1) % self.size].clone() if name in self._cut else full


def _cut_off(tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any) -> torch.Tensor:
    # The tensor stays in the graph: FSDP2 waits for its gradient.
    out = collectives._exchanged(tensor.detach(), sent, received, group)
    return out + 0 * tensor.sum() if tensor.is_floating_point() else out


def _of_own_rank(self: Any) -> torch.Tensor:
    return torch.stack(self._counts).float()


def _in_order_of_ranks(pair_counts: torch.Tensor, total: int) -> torch.Tensor:
    return torch.arange(total, device=pair_counts.device)


QUIET = (
    *("experts not averaged over their ranks", "experts averaged twice", "rows exchanged without gradients"),
    *("router without a gradient", "tokens of one rank balanced", "balance loss of another scale", "biases not moved"),
)
"""Faults that do not change the first step's loss."""
FAULTS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "experts not averaged over their ranks": lambda: _replaced(
        ExpertParallel, "average", lambda _: lambda *_args: None
    ),
    "experts averaged twice": lambda: _replaced(ExpertParallel, "average", _twice),
    "rows left in the order of ranks": lambda: _replaced(dispatch, "in_order_of_experts", lambda _: _in_order_of_ranks),
    "rows exchanged without gradients": lambda: _replaced(dispatch, "exchange", lambda _: _cut_off),
    "experts of the neighbour": lambda: _replaced(ExpertParallel, "cut", lambda _: _of_neighbour),
    "tokens of one rank balanced": lambda: _replaced(Balance, "_summed", lambda _: _of_own_rank),
    "balance loss of another scale": lambda: _replaced(
        Balance, "weigh", lambda weigh: lambda self, scale: weigh(self, torch.ones_like(scale))
    ),
    "biases not moved": lambda: _replaced(Balance, "step", lambda _: lambda _self: None),
    "experts laid out over all shards": lambda: _replaced(Mesh, "expert_shards", lambda _: Mesh.shards),
}
