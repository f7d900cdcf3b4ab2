"""Attention over whole sequences on ranks that each have a part of them. An all-to-all gives a rank some heads of all
tokens, a second all-to-all returns its tokens (DeepSpeed Ulysses, arXiv 2309.14509, section 3).

Ranks have consecutive parts of a sequence, so exchanged tensors are in sequence order and attention is plain.
"""

from typing import Any

import torch
import torch.distributed as dist

from trainers.distributed.collectives import all_to_all


def whole_sequences(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Any
) -> tuple[torch.Tensor, ...]:
    """Returns queries, keys and values [batch, heads / ranks, length x ranks, width] from this rank's [batch, heads,
    length, width]. If there are fewer key/value heads than ranks, each goes to all ranks whose queries use it, and its
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
    """Returns attention's output [batch, length, heads, width] for this rank's tokens, from the output for its heads
    [batch, heads / ranks, length x ranks, width].
    """
    of_ranks = out.unflatten(2, (dist.get_world_size(group), -1)).permute(2, 0, 1, 3, 4)
    return all_to_all(of_ranks, group).permute(1, 3, 0, 2, 4).flatten(2, 3)


def own_heads(of_heads: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns this rank's heads [heads / ranks] of the values [heads]."""
    return of_heads.chunk(dist.get_world_size(group))[dist.get_rank(group)]
