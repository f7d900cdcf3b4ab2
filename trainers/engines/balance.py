"""Balances a model's routers over whole steps. Tokens are counted over all micro-batches and ranks of a step, so that
the division of a step does not change the training (`trainers.kernels.balance`).
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
"""Moment at which tokens are counted: in all passes of a step, in additional passes before the step, or in the forward
pass of its only micro-batch.
"""
_RANKS = ("dp_replicate", "dp_shard", "cp")
"""Degrees whose ranks process different tokens of a step."""


class Balance:
    """Balances the routers of this rank's `models` at each step, as `recipe` says."""

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
        """Chooses when to count the tokens of a step with that many micro-batches. The first backward pass of `aux`
        needs all counts. A single forward pass gives them for one micro-batch; several need additional forward passes
        ahead.
        """
        moments: dict[str, Moment] = {"aux": "ahead" if num_micro_batches > 1 else "pass", "bias": "step"}
        self._moment = moments.get(self._recipe.balance_loss)

    def counts(self, moment: Moment) -> bool:
        return self._moment == moment

    @contextlib.contextmanager
    def counting(self, moment: Moment) -> Generator[None, None, None]:
        """Counts the tokens of each expert within the context, if this is the moment to count."""
        if not self.counts(moment):
            yield
            return
        # A checkpointed block counts its tokens twice; this scales all counts of a block and leaves the shares as they
        # are.
        with counted_tokens((router for _, router in self._named), self._device) as self._counts:
            yield

    def forget(self) -> None:
        for counts in self._counts:
            counts.zero_()

    @torch.no_grad()
    def weigh(self, scale: torch.Tensor) -> None:
        """Sets the gradient of the balance loss for the coming step from the counted tokens; a collective. `scale` is
        the factor of its micro-batches' losses before differentiation.
        """
        num_blocks = self._recipe.model.num_layers
        for (_, router), counts in zip(self._named, self._summed(), strict=True):
            # Writes through `data`, because a pass that saved these buffers may still await its backward pass. All of a
            # token's experts are counted, so the shares sum to top_k.
            shares = counts * router.top_k / counts.sum()
            getattr(router, LOAD).data.copy_(shares * (self._recipe.rate_of_balance * router.num_experts / num_blocks))
            getattr(router, SCALE).data.copy_(scale)

    @torch.no_grad()
    def step(self) -> None:
        """Moves the routers' biases by the finished step's token counts; a collective."""
        if self._recipe.balance_loss != "bias":
            return
        for (_, router), counts in zip(self._named, self._summed(), strict=True):
            getattr(router, BIAS).add_(torch.sign(counts.mean() - counts), alpha=self._recipe.rate_of_balance)

    def biases(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the routers' biases by router name; each rank has whole biases for its blocks."""
        if self._recipe.balance_loss == "bias":
            yield from ((name, getattr(router, BIAS)) for name, router in self._named)

    def replica(self) -> tuple[int, int]:
        """Returns this rank's index among the ranks that hold the same biases, and their number."""
        return dist.get_rank(self._group), self._num_ranks

    def _summed(self) -> torch.Tensor:
        """Returns the tokens of each expert over all ranks, fp32 [routers, experts]."""
        counts = torch.stack(self._counts)
        if self._num_ranks > 1:
            dist.all_reduce(counts, group=self._group)
        return counts.float()
