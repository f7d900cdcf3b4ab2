"""Spans of positions that each token sees, from the tokens' flags, where they differ from sequence to sequence.

A causal mask inside documents and a prefix that sees itself whole are both spans: a query sees the keys from one
position to another. So is a sliding window, which cuts the span's beginning. A block mask for FlexAttention follows
from the spans of a block's queries, without a mask of [seq_len, seq_len].
"""

import dataclasses
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask

from trainers.data.flags import FLAG
from trainers.spec.recipe_axes import AttentionMask

BLOCK = 128
"""Queries and keys of a block of FlexAttention, torch's default."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spans:
    """The keys that each query of a micro-batch sees, by their positions in the sequence."""

    queries: torch.Tensor
    """Positions of the queries, int64 [queries]."""
    first: torch.Tensor
    """Position of the first key that a query sees, int64 [batch, queries]."""
    last: torch.Tensor
    """Position of the last key that a query sees, int64 [batch, queries]."""

    def within(self, window: int | None) -> "Spans":
        """Returns the spans without the keys before a sliding window of so many tokens, the query's own among them."""
        if window is None:
            return self
        return dataclasses.replace(self, first=torch.maximum(self.first, self.queries - window + 1))

    def sees(self, keys: torch.Tensor) -> torch.Tensor:
        """Returns whether each query sees each of the keys at these positions: bool [batch, 1, queries, keys]."""
        return ((keys >= self.first[..., None]) & (keys <= self.last[..., None]))[:, None]


def ids_of(tokens: torch.Tensor) -> torch.Tensor:
    """Returns token ids without their flags."""
    return tokens % FLAG


def is_flagged(tokens: torch.Tensor) -> torch.Tensor:
    """Returns whether the attention mask has a flag at each token."""
    return tokens & FLAG > 0


def is_label(tokens: torch.Tensor) -> torch.Tensor:
    """Returns whether each token has a loss."""
    return tokens < FLAG


def spans_of(tokens: torch.Tensor, mask: AttentionMask, queries: torch.Tensor | None) -> Spans:
    """Returns the spans of int64 [batch, seq_len] flagged tokens, or of those at positions `queries` alone."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    flags = is_flagged(tokens)
    first = torch.zeros_like(tokens)
    last = places.expand_as(tokens)
    if mask == "document":
        first = torch.where(flags, places, 0).cummax(1).values
    else:
        last = torch.maximum(last, flags.sum(1, keepdim=True) - 1)
    if queries is None:
        return Spans(queries=places, first=first, last=last)
    return Spans(queries=queries, first=first.index_select(1, queries), last=last.index_select(1, queries))


def block_mask(spans: Spans, keys: torch.Tensor) -> BlockMask:
    """Returns the block mask of `spans` over the keys at these positions, in the order of `keys`.

    A block of queries visits a block of keys where the hulls of their positions meet. It leaves the mask out where all
    of its queries see all of these keys.
    """
    low, high = _by_block(keys[None], torch.amin), _by_block(keys[None], torch.amax)
    earliest, latest = (_by_block(spans.first, reduce)[..., None] for reduce in (torch.amin, torch.amax))
    shortest, longest = (_by_block(spans.last, reduce)[..., None] for reduce in (torch.amin, torch.amax))
    meets = (high[:, None] >= earliest) & (low[:, None] <= longest)
    is_full = (low[:, None] >= latest) & (high[:, None] <= shortest)
    # The last block may reach beyond the sequence, where only the mask knows.
    is_full[..., -1] &= len(keys) % BLOCK == 0
    first, last = spans.first, spans.last

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        position = keys[key]
        return (position >= first[batch, query]) & (position <= last[batch, query])

    return BlockMask.from_kv_blocks(
        *_listed(meets & ~is_full),
        *_listed(is_full),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(len(spans.queries), len(keys)),
    )


def _by_block(values: torch.Tensor, reduce: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Returns the least or the largest of each block of [batch, places] values, [batch, blocks]."""
    missing = -values.shape[1] % BLOCK
    last = values[:, -1:].expand(-1, missing)
    return reduce(torch.cat((values, last), 1).unflatten(1, (-1, BLOCK)), dim=-1)


def _listed(is_chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the number of chosen blocks a row of bool [batch, query blocks, key blocks] and all indices, those first,
    with a dimension for the heads.
    """
    ones = is_chosen[:, None].to(torch.int32)
    return ones.sum(-1, dtype=torch.int32), ones.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
