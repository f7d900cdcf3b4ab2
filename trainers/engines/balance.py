"""The balance of a model's routers over whole steps: tokens are counted over all micro-batches and ranks of a step, so
that neither changes what is trained (`trainers.kernels.balance`).
"""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist

from trainers.distributed.groups import Mesh
from trainers.kernels.balance import BIAS, LOAD, SCALE
from trainers.kernels.experts import counted_tokens, routers_of
from trainers.models.model import Model
from trainers.spec.recipe import Recipe

Moment = Literal["step", "ahead", "pass"]
"""Moment at which tokens are counted: in all passes of a step, ahead of it, or in the forward pass of its one
micro-batch.
"""
_RANKS = ("dp_replicate", "dp_shard", "cp")
"""Degrees whose ranks have other tokens of a step."""


class Balance:
    """Makes the routers of this rank's `models` even as `recipe` says, at each step."""

    def __init__(self, models: Sequence[Model], mesh: Mesh, recipe: Recipe, device: torch.device) -> None:
        self._recipe, self._device = recipe, device
        self._moment: Moment | None = None
        self._counts: list[torch.Tensor] = []
        self._named: list[tuple[str, Any]] = []
        if recipe.balance_loss == "none":
            return
        self._group, self._num_ranks = mesh.group(*_RANKS), mesh.size(*_RANKS)
        self._named = [
            (f"{name}.{path}", module)
            for model in models
            for name, block in zip(model.block_names, model.blocks, strict=True)
            for path, module in block.named_modules()
            if any(routers_of([module]))
        ]

    def begin(self, num_micro_batches: int) -> None:
        """Sets when the tokens of a step of so many micro-batches are counted.

        The first backward pass of `aux` needs all of them: those of a single micro-batch are known by then, of several
        a further forward pass counts them.
        """
        moments: dict[str, Moment] = {"aux": "ahead" if num_micro_batches > 1 else "pass", "bias": "step"}
        self._moment = moments.get(self._recipe.balance_loss)

    def counts(self, moment: Moment) -> bool:
        """Returns whether tokens are counted then."""
        return self._moment == moment

    @contextlib.contextmanager
    def counting(self, moment: Moment) -> Generator[None, None, None]:
        """Counts the tokens of each expert within, if they are counted at this moment."""
        if not self.counts(moment):
            yield
            return
        # A checkpointed block counts its tokens again as it is repeated: all of them, which moves no share of a block.
        with counted_tokens((router for _, router in self._named), self._device) as self._counts:
            yield

    def forget(self) -> None:
        """Counts anew: what ran so far is dropped."""
        for counts in self._counts:
            counts.zero_()

    @torch.no_grad()
    def weigh(self, scale: torch.Tensor) -> None:
        """Sets the gradient of the balance loss of the step to come, by the tokens that were counted; losses of its
        micro-batches are multiplied by `scale` before they are differentiated. A collective.
        """
        num_blocks = self._recipe.model.num_layers
        for (_, router), counts in zip(self._named, self._summed(), strict=True):
            # `data`: a pass that has saved these buffers may await its gradient.
            # Of each token's chosen experts one is counted: shares sum up to their number.
            shares = counts * router.top_k / counts.sum()
            getattr(router, LOAD).data.copy_(shares * (self._recipe.rate_of_balance * router.num_experts / num_blocks))
            getattr(router, SCALE).data.copy_(scale)

    @torch.no_grad()
    def step(self) -> None:
        """Moves the biases of the routers by the tokens of the step that ends; a collective."""
        if self._recipe.balance_loss != "bias":
            return
        for (_, router), counts in zip(self._named, self._summed(), strict=True):
            getattr(router, BIAS).add_(torch.sign(counts.mean() - counts), alpha=self._recipe.rate_of_balance)

    def biases(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the biases of the routers by the routers' names, whole on each rank that has their block."""
        if self._recipe.balance_loss == "bias":
            yield from ((name, getattr(router, BIAS)) for name, router in self._named)

    def replica(self) -> tuple[int, int]:
        """Returns this rank's number among those that hold the same biases, and their number."""
        return dist.get_rank(self._group), self._num_ranks

    def _summed(self) -> torch.Tensor:
        """Returns the tokens of each expert over all ranks, fp32 [routers, experts]."""
        counts = torch.stack(self._counts)
        if self._num_ranks > 1:
            dist.all_reduce(counts, group=self._group)
        return counts.float()
