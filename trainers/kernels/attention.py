"""Attention kernels, registered in transformers' registry of attention and mask functions (its public extension point).

"eager" is transformers' own. "sdpa" is torch's scaled_dot_product_attention with its causal mode; transformers' own
"sdpa" checks in each forward pass whether positions are of packed sequences, for which the host waits for the device.
transformers supports only "eager" for BLOOM, so BLOOM's attention modules are replaced (`trainers.kernels.bloom`) by
ones that use the same registry. "flex" is torch's FlexAttention, for every architecture: a causal block mask, and ALiBi
as a score modification. It has no backward pass on a CPU, where "flex" is scaled_dot_product_attention with ALiBi as an
additive bias. "flash4" is "flex" with FlashAttention-4's kernels, into which torch compiles mask and score
modification.

A sliding window is part of the mask: a block mask, which skips blocks without visible keys, or a boolean mask.
Sequences that are not longer than the window have no mask.

A rank may compute a `Share` of attention: its tensor-parallel heads for its context-parallel positions. Keys and values
of all positions are then gathered, and masks and biases follow positions; or heads are exchanged for positions
(`trainers.kernels.whole_sequences`), and masks and biases are for whole sequences. A document or prefix mask differs
between sequences: the `Spans` of the current micro-batch, held by the `Share`, replace the causal mask, in
transformers' eager attention too.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface

from trainers.distributed.collectives import gather
from trainers.kernels.compiled import static
from trainers.kernels.spans import Spans, block_mask
from trainers.kernels.whole_sequences import own_heads, own_tokens, whole_sequences
from trainers.spec.architectures.architecture import Position
from trainers.spec.layout_axes import Attention
from trainers.spec.recipe_axes import AttentionMask

ScoreMod = Callable[..., torch.Tensor]

SHARE = "attention_share"
"""Attribute of a model's configuration that holds its `Share`, for the functions that make masks."""


@dataclasses.dataclass(kw_only=True, eq=False)
class Share:
    """The part of a model's attention that a rank computes."""

    num_heads: int
    """Number of heads of the whole model."""
    heads: range
    """Indices of the heads that this rank computes."""
    tokens: torch.Tensor | None = None
    """Positions of this rank's tokens in their sequence, int64 on the device; None if it has all of them."""
    queries: torch.Tensor | None = None
    """Positions of the queries, equal to its tokens' positions; None if queries are of whole sequences."""
    keys: torch.Tensor | None = None
    """Positions of all tokens, in the order in which the ranks of `group` gather them; None if that is sequence order.
    """
    group: Any = None
    """The ranks that have the other positions."""
    mask: AttentionMask = "causal"
    spans: Spans | None = None
    """Spans of keys for the queries of the current micro-batch; None under a causal mask."""

    @property
    def exchanges_heads(self) -> bool:
        """Whether the ranks of `group` exchange heads for positions."""
        return self.group is not None and self.queries is None

    def num_queries(self, length: int) -> int:
        """Returns the number of attention's queries if this rank has `length` tokens of each sequence.

        Raises:
            ValueError: it has another number of tokens, so masks would be for the wrong positions.
        """
        if self.tokens is not None and length != len(self.tokens):
            raise ValueError(
                f"context parallelism cuts sequences into parts of {len(self.tokens)} tokens, got {length}:"
                " give sequences of the recipe's length"
            )
        return length * self.group.size() if self.exchanges_heads else length


# None of these may contain a name that transformers knows, or it would look for its own kernel.
_NAMES: dict[str, dict[Attention, str]] = {
    "alibi": {"eager": "eager", "sdpa": "alibi_bias", "flex": "alibi_flex", "flash4": "alibi_fa4"},
    "masked": {"eager": "eager", "sdpa": "causal_mask", "flex": "causal_flex", "flash4": "causal_fa4"},
    "other": {"eager": "eager", "sdpa": "causal", "flex": "causal_flex", "flash4": "causal_fa4"},
}
_EAGER_SPANS = "spans_by_hand"
"""transformers' own eager attention with a mask from this module."""


def transformers_name(
    position: Position, attention: Attention, *, masked: bool = False, mask: AttentionMask = "causal"
) -> str:
    """Returns transformers' name (`attn_implementation`) for `attention` in a model with these positions. `masked` says
    whether sdpa needs a mask although the recipe's is causal: for a sliding window, or for a part of the queries.
    """
    if attention == "eager" and mask != "causal":
        return _EAGER_SPANS
    masked = masked or mask != "causal"
    return _NAMES["alibi" if position == "alibi" else "masked" if masked else "other"][attention]


def layout_name(name: str) -> str:
    """Returns the layout's name for a configuration's `_attn_implementation`; a foreign name unchanged."""
    if name == _EAGER_SPANS:
        return "eager"
    return next((word for names in _NAMES.values() for word, kernel in names.items() if kernel == name), name)


def takes_mask_of_ours(config: Any) -> bool:
    """Returns whether transformers prepares a mask in each forward pass for a function of this module, in a model that
    takes positions.
    """
    return config._attn_implementation in ("causal_mask", "causal_flex", "causal_fa4", _EAGER_SPANS)


def flex_options_of(attention: Attention) -> dict[str, str] | None:
    """Returns FlexAttention's options for `attention`; None for its own kernels, compiled by Triton."""
    return {"BACKEND": "FLASH"} if attention == "flash4" else None


def alibi_slope(head: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Returns ALiBi's slopes for `head` (indices of any shape), fp32: a geometric series (arXiv 2108.12409). If the
    number of heads is no power of two, heads beyond the largest power below it take every other slope of the next
    series.
    """
    power = 2 ** (num_heads.bit_length() - 1)
    exponent = -8.0 / power * (head + 1)
    if power != num_heads:
        exponent = torch.where(head < power, exponent, -4.0 / power * (2 * (head - power) + 1))
    return torch.exp2(exponent)


def alibi_score(share: Share) -> ScoreMod:
    """Returns ALiBi as a score modification, computed by distance in fp32, so that small biases are exact."""
    first, queries, keys = share.heads.start, share.queries, share.keys

    def score_mod(
        score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        distance = key - query if queries is None or keys is None else keys[key] - queries[query]
        return score + alibi_slope(head + first, share.num_heads) * distance

    return score_mod


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: BlockMask | torch.Tensor | None,
    scaling: float | None = None,
    flex_options: dict[str, str] | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Computes causal attention for transformers: [batch, heads, length, width] to [batch, length, heads, width].

    Uses FlexAttention with `flex_options` for a block mask, else scaled_dot_product_attention, causal or with the given
    bias. Sinks (`s_aux`, [heads]) are a score per head beside its keys' scores and need the logarithm of the softmax's
    sum. Dropout is off in every model.
    """
    # Under autocast rotary embeddings leave queries and keys in fp32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    share: Share | None = getattr(module, "share", None)
    if share is not None and share.exchanges_heads:
        query, key, value = whole_sequences(query, key, value, share.group)
        s_aux = None if s_aux is None else own_heads(s_aux, share.group)
    elif share is not None and share.queries is not None:
        key, value = gather(torch.stack((key, value)), 3, share.group).unbind()
    grouped = key.shape[1] != query.shape[1]
    if isinstance(attention_mask, BlockMask):
        # Outside compiled code FlexAttention would materialise all scores, so it is compiled by itself.
        flex: Any = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
        score_mod = getattr(module, "score_mod", None)
        inputs = (query, key, value, score_mod, attention_mask, scaling, grouped)
        if s_aux is None:
            out = flex(*inputs, kernel_options=flex_options)
        else:
            out, sums = flex(*inputs, kernel_options=flex_options, return_aux=AuxRequest(lse=True))
            out = _sunk(out, sums.lse, s_aux)
    elif s_aux is not None:
        out = _sunk(*_written_out(query, key, value, attention_mask, scaling), s_aux)
    else:
        causal = attention_mask is None
        out = F.scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=causal, scale=scaling, enable_gqa=grouped
        )
    if share is not None and share.exchanges_heads:
        return own_tokens(out, share.group), None
    return out.transpose(1, 2), None


def _sunk(out: torch.Tensor, log_sum: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Returns attention's output [batch, heads, length, width] rescaled for sinks in the softmax. `log_sum` is the
    logarithm of the sum of exponentials without sinks.
    """
    share = torch.sigmoid(log_sum - sinks.float()[None, :, None])
    return (out * share[..., None]).to(out.dtype)


def _written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns attention's output and the logarithm of its sum of exponentials (fp32), from materialised scores; causal
    without a mask.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (heads.repeat_interleave(groups, dim=1) for heads in (key, value))
    scores = (query @ key.transpose(2, 3)).float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    visible = scores.new_ones(scores.shape[2:], dtype=torch.bool).tril() if mask is None else mask
    scores = scores.masked_fill(visible.logical_not(), float("-inf"))
    return scores.softmax(dim=-1).to(value.dtype) @ value, scores.logsumexp(dim=-1)


def _attend_eagerly(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Computes transformers' eager attention of the module's architecture."""
    code: Any = sys.modules[type(module).__module__]
    return code.eager_attention_forward(module, *args, **kwargs)


@functools.cache
def _compiled_flex() -> Any:
    return static(flex_attention)


def _causal(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def _visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """Returns whether a query sees a key: all keys up to its position, or only the last `window` of them."""
    visible = queries >= keys
    return visible if window is None else visible & (queries - keys < window)


@functools.lru_cache(maxsize=8)
def _seen_mask(length: int, window: int | None, device: torch.device, share: Share | None) -> torch.Tensor:
    """Returns `_visible` for all queries [rows] and keys [columns]; cached, because all blocks share it."""
    queries = keys = torch.arange(length, device=device)
    if share is not None and share.queries is not None and share.keys is not None:
        queries, keys = share.queries, share.keys
    return _visible(queries[:, None], keys[None, :], window)


@functools.lru_cache(maxsize=8)
def _block_mask(length: int, device: torch.device, share: Share | None, window: int | None = None) -> BlockMask:
    queries = None if share is None else share.queries
    keys = None if share is None else share.keys
    if queries is None or keys is None:
        if window is None:
            return create_block_mask(_causal, None, None, length, length, device=device)
        queries = keys = torch.arange(length, device=device)

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return _visible(queries[query], keys[key], window)

    return create_block_mask(sees, None, None, len(queries), len(keys), device=device)


def _attended(config: Any, length: int) -> tuple[int, Share | None]:
    """Returns the number of attention's queries in a forward pass over `length` tokens, and the rank's share."""
    share: Share | None = getattr(config, SHARE, None)
    return (length, None) if share is None else (share.num_queries(length), share)


def _flex_mask(
    *, kv_length: int, device: torch.device, config: Any, local_size: int | None = None, **_: Any
) -> BlockMask | torch.Tensor | None:
    """Returns the mask of a model's forward pass, for all blocks with, or all blocks without, a window of `local_size`
    tokens; None if attention's causal mode suffices.
    """
    if torch.device(device).type == "cpu":
        return _sdpa_mask(kv_length=kv_length, device=device, config=config, local_size=local_size)
    length, share = _attended(config, kv_length)
    window = _window_within(local_size, length, share)
    if share is not None and share.spans is not None:
        return block_mask(share.spans.within(window), _key_positions(share, share.spans))
    return _block_mask(length, torch.device(device), share, window)


def _sdpa_mask(
    *, kv_length: int, device: torch.device, config: Any, local_size: int | None = None, **_: Any
) -> torch.Tensor | None:
    """Returns the mask of `_flex_mask` for scaled_dot_product_attention."""
    length, share = _attended(config, kv_length)
    window = _window_within(local_size, length, share)
    if share is not None and share.spans is not None:
        return share.spans.within(window).sees(_key_positions(share, share.spans))
    if window is None and (share is None or share.queries is None):
        return None
    return _seen_mask(length, window, torch.device(device), share)


def _eager_mask(*, dtype: torch.dtype = torch.float32, **settings: Any) -> torch.Tensor | None:
    """Returns the mask of `_sdpa_mask` as a term that eager attention adds to its scores."""
    mask = _sdpa_mask(**settings)
    return None if mask is None else torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)


def _key_positions(share: Share, spans: Spans) -> torch.Tensor:
    return spans.queries if share.keys is None else share.keys


def _window_within(local_size: int | None, length: int, share: Share | None) -> int | None:
    """Returns the window if it is shorter than a sequence, else None; `length` is the rank's number of tokens."""
    num_keys = length if share is None or share.keys is None else len(share.keys)
    return local_size if local_size is not None and local_size < num_keys else None


def _alibi_bias(*, kv_length: int, dtype: torch.dtype, device: torch.device, config: Any, **_: Any) -> torch.Tensor:
    """Returns ALiBi and the causal mask as one bias [1, heads, length, length], made once per forward pass for all
    blocks. It is computed by distance, so that in 16 bits the values near the diagonal, which matter most, are exact.
    """
    device = torch.device(device)
    if torch.is_autocast_enabled(device.type):
        # Otherwise each block would cast it and keep its own copy for the backward pass.
        dtype = torch.get_autocast_dtype(device.type)
    length, share = _attended(config, kv_length)
    queries = keys = torch.arange(length, device=device)
    if share is not None and share.queries is not None and share.keys is not None:
        queries, keys = share.queries, share.keys
    distance = keys[None, :] - queries[:, None]
    heads = range(config.num_attention_heads) if share is None else share.heads
    slopes = alibi_slope(torch.arange(heads.start, heads.stop, device=device), config.num_attention_heads)
    bias = (slopes[:, None, None] * distance).to(dtype)
    if share is not None and share.spans is not None:
        return torch.where(share.spans.sees(keys), bias, float("-inf"))
    return bias.masked_fill_(distance > 0, float("-inf"))[None]


def _alibi_flex_mask(*, device: torch.device, **settings: Any) -> BlockMask | torch.Tensor | None:
    if torch.device(device).type == "cpu":
        return _alibi_bias(device=device, **settings)
    return _flex_mask(device=device, **settings)


AttentionInterface.register("causal", attend)  # without a mask function, so that transformers makes no mask
_attend_by_flash4 = functools.partial(attend, flex_options=flex_options_of("flash4"))
for _name, _function, _mask in (
    ("causal_mask", attend, _sdpa_mask),
    ("causal_flex", attend, _flex_mask),
    ("causal_fa4", _attend_by_flash4, _flex_mask),
    ("alibi_flex", attend, _alibi_flex_mask),
    ("alibi_fa4", _attend_by_flash4, _alibi_flex_mask),
    ("alibi_bias", attend, _alibi_bias),
):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _mask)
AttentionInterface.register(_EAGER_SPANS, _attend_eagerly)
AttentionMaskInterface.register(_EAGER_SPANS, _eager_mask)
