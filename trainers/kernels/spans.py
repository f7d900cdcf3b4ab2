"""Spans of positions that each token attends to, from the tokens' flags, if they differ between sequences.

A causal mask inside documents and a prefix that attends to itself as a whole are both spans: a query attends to the
keys from one position to another. A sliding window moves the beginning of a span. A block mask for FlexAttention
follows from the spans of a block's queries, without a mask of [seq_len, seq_len].
"""

import dataclasses
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask

from trainers.data.flags import FLAG
from trainers.spec.kernel_rules import BLOCK
from trainers.spec.recipe_axes import AttentionMask


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spans:
    """The keys that each query of a micro-batch attends to, by position in the sequence."""

    queries: torch.Tensor
    """Positions of the queries, int64 [queries]."""
    first: torch.Tensor
    """Position of the first key of each query, int64 [batch, queries]."""
    last: torch.Tensor
    """Position of the last key of each query, int64 [batch, queries]."""

    def within(self, window: int | None) -> "Spans":
        """Returns the spans cut to a sliding window of that many tokens, the query's own included."""
        if window is None:
            return self
        return dataclasses.replace(self, first=torch.maximum(self.first, self.queries - window + 1))

    def sees(self, keys: torch.Tensor) -> torch.Tensor:
        """Returns whether each query attends to each of the keys at these positions: bool [batch, 1, queries, keys]."""
        return ((keys >= self.first[..., None]) & (keys <= self.last[..., None]))[:, None]


def ids_of(tokens: torch.Tensor) -> torch.Tensor:
    return tokens % FLAG


def is_flagged(tokens: torch.Tensor) -> torch.Tensor:
    return tokens & FLAG > 0


def is_label(tokens: torch.Tensor) -> torch.Tensor:
    """Returns whether each token has a loss."""
    return tokens < FLAG


def spans_of(tokens: torch.Tensor, mask: AttentionMask, queries: torch.Tensor | None) -> Spans:
    """Returns the spans of int64 [batch, seq_len] flagged tokens, or only of the tokens at positions `queries`."""
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

    A block of queries visits a block of keys if the ranges of their positions overlap. Blocks whose queries all attend
    to all of its keys need no mask.
    """
    low, high = _by_block(keys[None], torch.amin), _by_block(keys[None], torch.amax)
    earliest, latest = (_by_block(spans.first, reduce)[..., None] for reduce in (torch.amin, torch.amax))
    shortest, longest = (_by_block(spans.last, reduce)[..., None] for reduce in (torch.amin, torch.amax))
    meets = (high[:, None] >= earliest) & (low[:, None] <= longest)
    is_full = (low[:, None] >= latest) & (high[:, None] <= shortest)
    # The last block may extend beyond the sequence, so it needs the mask.
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
    """Returns the minimum or maximum of each block of values [batch, places], as [batch, blocks]."""
    missing = -values.shape[1] % BLOCK
    last = values[:, -1:].expand(-1, missing)
    return reduce(torch.cat((values, last), 1).unflatten(1, (-1, BLOCK)), dim=-1)


def _listed(is_chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the number of chosen blocks in each row of bool [batch, query blocks, key blocks], and all indices with
    the chosen ones first; with a dimension for the heads.
    """
    ones = is_chosen[:, None].to(torch.int32)
    return ones.sum(-1, dtype=torch.int32), ones.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
