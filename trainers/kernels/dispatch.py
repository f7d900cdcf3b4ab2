"""Sends tokens to experts on other ranks and back. A token is sent once to each rank that has some of its experts, and
one row comes back: the weighted sum of these experts' outputs.

Sums have a fixed order, unlike the gradient of indexing: copies of a row are summed by embedding bags.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainers.distributed.collectives import exchange


def dispatched(
    products: Callable[[Tensor, Tensor], Tensor],
    tokens: Tensor,
    chosen: Tensor,
    weights: Tensor,
    *,
    num_experts: int,
    group: Any,
) -> Tensor:
    """Returns the weighted sum [tokens, hidden] of the outputs of each token's experts on all ranks of the group.

    `chosen` and fp32 `weights` are [tokens, chosen]. `products(rows, ends)` computes this rank's experts for rows in
    expert order; `ends` are the ends of each expert's rows. The host synchronises once, to read the numbers of rows.
    """
    size, (num_tokens, per_token) = group.size(), chosen.shape
    held = num_experts // size
    ranks = chosen // held
    goes = torch.zeros((size, num_tokens), dtype=torch.bool, device=chosen.device).scatter_(0, ranks.t(), True)
    of_pairs, order = chosen.flatten().sort(stable=True)
    every = torch.arange(num_experts + 1, device=chosen.device)
    counts = torch.searchsorted(of_pairs, every).diff().view(size, held)
    facts = torch.cat((counts, goes.sum(dim=1, keepdim=True)), dim=1)
    of_ranks = exchange(facts, [1] * size, [1] * size, group)
    pair_counts = of_ranks[:, :-1]
    pairs, rows, received_pairs, received_rows = torch.stack(
        (counts.sum(dim=1), facts[:, -1], pair_counts.sum(dim=1), of_ranks[:, -1])
    ).tolist()

    # Rows are ordered by destination rank; each pair of token and expert carries its row's index on that rank.
    of_rows = goes.flatten().byte().argsort(descending=True, stable=True)[: sum(rows)] % max(1, num_tokens)
    places = (goes.cumsum(dim=1) - 1)[ranks.flatten()[order], order // per_token]
    arrived = exchange(_spread(tokens, of_rows), rows, received_rows, group)
    notes = exchange(torch.stack((weights.flatten()[order], places.float()), dim=1), pairs, received_pairs, group)
    first = (of_ranks[:, -1].cumsum(dim=0) - of_ranks[:, -1]).repeat_interleave(
        pair_counts.sum(dim=1), output_size=sum(received_pairs)
    )
    by_expert = in_order_of_experts(pair_counts, sum(received_pairs))
    of_pair = (notes[:, 1].detach().long() + first)[by_expert]

    outputs = products(_spread(arrived, of_pair), pair_counts.sum(dim=0).cumsum(dim=0, dtype=torch.int32))
    weighted = outputs * notes[:, 0][by_expert].to(outputs.dtype)[:, None]
    returned = exchange(_collected(weighted, of_pair, len(arrived)), received_rows, rows, group)
    return _collected(returned, of_rows, num_tokens)


def in_order_of_experts(pair_counts: Tensor, total: int) -> Tensor:
    """Returns the permutation by expert, int64 [total], of pairs ordered by rank and then by expert. `pair_counts` are
    [ranks, experts].
    """
    every = torch.arange(pair_counts.shape[1], device=pair_counts.device).repeat(len(pair_counts))
    return every.repeat_interleave(pair_counts.flatten(), output_size=total).argsort(stable=True)


def _spread(values: Tensor, index: Tensor) -> Tensor:
    """Returns the rows of values at `index`, [len(index), width], some of them repeated."""
    apply: Any = _Spread.apply
    return apply(values, index, *_runs(index, len(values)))


def _collected(values: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """Returns [num_rows, width]; row i is the sum of the values whose `index` is i."""
    apply: Any = _Collected.apply
    return apply(values, index, *_runs(index, num_rows))


def _runs(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Returns the order that sorts `index`, and where in it the run of each of `num_rows` begins."""
    ordered, order = index.sort(stable=True)
    return order, torch.searchsorted(ordered, torch.arange(num_rows, device=index.device))


def _bags(values: Tensor, order: Tensor, starts: Tensor) -> Tensor:
    """Returns the sums [len(starts), width] of runs of values in that order."""
    if not len(values) or not len(starts):
        return values.new_zeros((len(starts), values.shape[1]))
    return F.embedding_bag(order, values, starts, mode="sum")


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(order, starts)
        return values[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        return _bags(gradients[0].contiguous(), *ctx.saved_tensors), None, None, None


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return _bags(values, order, starts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return gradients[0][index], None, None, None
