"""Attention over whole sequences on ranks that each have a part of them: an all-to-all gives a rank some heads of all
tokens, a second one gives its tokens back (DeepSpeed Ulysses, arXiv 2309.14509, section 3).

Ranks have consecutive parts of a sequence, so that what they exchange lies in its order and attention is plain.
"""

from typing import Any

import torch
import torch.distributed as dist

from trainers.distributed.collectives import all_to_all


def whole_sequences(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Any
) -> tuple[torch.Tensor, ...]:
    """Returns queries, keys and values [batch, heads / ranks, length x ranks, width] out of this rank's [batch, heads,
    length, width].

    Where there are fewer key/value heads than ranks, each goes to all ranks whose queries attend to it, and its
    gradients are summed.
    """
    size = dist.get_world_size(group)
    if key.shape[1] < size:
        key, value = (heads.repeat_interleave(size // heads.shape[1], dim=1) for heads in (key, value))
    counts = [heads.shape[1] // size for heads in (query, key, value)]
    of_ranks = torch.cat([heads.unflatten(1, (size, -1)) for heads in (query, key, value)], 2)
    received = all_to_all(of_ranks.transpose(0, 1), group)
    return received.permute(1, 2, 0, 3, 4).flatten(2, 3).split(counts, 1)


def own_tokens(out: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns attention's output [batch, length, heads, width] for this rank's tokens, out of that of its heads
    [batch, heads / ranks, length x ranks, width].
    """
    of_ranks = out.unflatten(2, (dist.get_world_size(group), -1)).permute(2, 0, 1, 3, 4)
    return all_to_all(of_ranks, group).permute(1, 3, 0, 2, 4).flatten(2, 3)


def own_heads(of_heads: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns the values [heads / ranks] of the heads that this rank attends with, out of [heads]."""
    return of_heads.chunk(dist.get_world_size(group))[dist.get_rank(group)]
