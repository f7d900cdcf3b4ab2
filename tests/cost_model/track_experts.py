"""Prints the peak memory, GiB, of steps of models with experts on one of several ranks, from their real tensors.

A script: it makes a fake process group for the whole process. Rows that other ranks would send are taken to be as many
as this one sends itself, as under forced balance.

    PYTHONPATH=. python tests/cost_model/track_experts.py '[{"recipe": {...}, "layout": {...}, "micro_batch": 4}]'
"""

# A storage is known by its private address.
# pyright: reportPrivateUsage=false

import json
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainers.engines.create import create_engine
from trainers.kernels import dispatch
from trainers.marks.step import Unmarked
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


class _Peak(TorchDispatchMode):
    """Sums the bytes of all storages that operations created and that still exist."""

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._held: dict[int, int] = {}
        self._total = self.peak = 0
        for tensor in held:
            self._add(tensor)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._held or not size:
            return
        self._held[key] = size
        self._total += size
        self.peak = max(self.peak, self._total)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._total -= self._held.pop(key, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return out


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, received: int) -> torch.Tensor:
        ctx.shape = values.shape
        return values.new_zeros((received, *values.shape[1:]))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].new_zeros(ctx.shape), None


def _exchange(values: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any) -> torch.Tensor:
    if not values.is_floating_point():  # the numbers of rows
        return values[:1].expand_as(values).contiguous()
    apply: Any = _Received.apply
    return apply(values, sum(received))


def peak_gib(recipe: Recipe, layout: Layout, batch: BatchPoint) -> float:
    """Returns the peak in GiB of one optimizer step on this rank of the default process group."""
    with mock.patch.object(dispatch, "exchange", _exchange):
        engine: Any = create_engine(recipe, layout, torch.device("cpu"))
        size = (batch.micro_batch, recipe.seq_len + 1)
        tokens = [torch.zeros(size, dtype=torch.int64) for _ in range(batch.grad_accum)]
        engine.step(tokens, Unmarked())  # optimizer states are made
        states = [value for state in engine._optimizer.state.values() for value in state.values()]
        tracker = _Peak([*engine.module.parameters(), *states])
        with tracker:
            engine.step(tokens, Unmarked())
        engine.close()
    return tracker.peak / 2**30


def main() -> None:
    """Prints one JSON list with the peaks of the cases, which must have equally many ranks."""
    cases = json.loads(sys.argv[1])
    world_size = from_json(Layout, cases[0]["layout"]).world_size
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    peaks_gib: list[float] = []
    for case in cases:
        recipe, layout = from_json(Recipe, case["recipe"]), from_json(Layout, case["layout"])
        peaks_gib.append(peak_gib(recipe, layout, BatchPoint.of(recipe, layout, case["micro_batch"])))
    print(json.dumps(peaks_gib))


if __name__ == "__main__":
    main()
