"""Seconds of context parallelism, which sends keys and values, or heads, of a sequence's parts between ranks."""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share, code_of
from platform.cost_model.hardware import BANDWIDTH_SHARE
from platform.cost_model.links import Ring

MERGED_BYTES = constants.words("cp", "MERGED_BYTES")
_HEADS = code_of("cp_exchange", "all_to_all")


def block_s(c: Columns, tokens: Array, full: Mask) -> Array:
    """Returns the seconds of one block and micro-batch.

    In a ring, keys and values are passed around in each pass, partly hidden by attention; a third round returns their
    gradients (Ring Attention, arXiv 2310.01889, section 3). Half is assumed hidden. The results of each part of the
    keys are merged in fp32.

    In an all-to-all each rank gets some heads of the whole sequence: queries, keys and values before attention, its
    output after it, and their gradients (DeepSpeed Ulysses, arXiv 2309.14509, section 3). Nothing of it is hidden.

    This project's blocks gather keys and values in one collective before attention, and scatter their gradients; or
    they exchange heads in two collectives. Recomputation repeats either.
    """
    ring = Ring.along(c, "cp")
    key_bytes = 2 * c.kv_width / c.parts("width") * c.compute_bytes
    out_bytes = c.attention_width / c.parts("width") * c.compute_bytes
    gathered = tokens * ring.ranks * key_bytes
    again = np.where(full, checkpointed_share(c), 0.0)
    rounds = 0.5 * 3 * gathered * (ring.ranks - 1) / ring.ranks / ring.bandwidth + _merging_s(c, tokens, 2.0 + again)
    if np.any(c.software.exchanges_heads):
        heads_s = ring.exchange_s(tokens * (key_bytes + 2 * out_bytes))
        rounds = np.where(c.software.exchanges_heads > 0, (2.0 + again) * heads_s, rounds)
    apart = 2.0 + np.where(full, checkpointed_share(c), c.selective_checkpointing)
    ours = ring.gather_s(gathered)
    if np.any(c.axes["cp_exchange"] == _HEADS):
        # A key/value head is sent to every rank whose queries attend to it.
        sent = np.maximum(key_bytes, 2 * c.attention_width / c.heads * ring.ranks * c.compute_bytes) + out_bytes
        heads_s = ring.exchange_s(tokens * sent) + ring.exchange_s(tokens * out_bytes)
        ours = np.where(c.axes["cp_exchange"] == _HEADS, heads_s, ours)
    return np.where(ring.ranks > 1, np.where(c.own_mesh > 0, apart * ours, rounds), 0.0)


def _merging_s(c: Columns, tokens: Array, passes: Array) -> Array:
    """Returns the seconds of merging results (in the backward pass, gradients) of all parts after the first."""
    moved = np.where(c.software.merges_eagerly > 0, MERGED_BYTES["eager"], MERGED_BYTES["fused"])
    values = tokens * c.attention_width / c.parts("width") * (c.parts("tokens") - 1)
    return passes * values * moved / (c.bandwidth * BANDWIDTH_SHARE)
