"""The global batch that any number of data-parallel ranks of some devices share evenly."""

import math
from collections.abc import Sequence

from search_spaces.degrees import divisors

MOST_TOKENS = 64_000_000
"""Tokens of a step that no batch exceeds which this project assumes or advises."""
_USUAL_TOKENS = 4_194_304
"""Tokens of a step up to which a batch is made a multiple of larger micro-batches too: published runs have 0.5 to 16
million (arXiv 2005.14165, table 2.1; arXiv 2407.21783, table 4).
"""
_USUAL_SIZES = (1, 2, 4, 8, 16)
"""Micro-batches that a batch of ours is divisible by, so that ladders have them."""


def shared_batch(near: int, counts: Sequence[int], micro_batches: Sequence[int], seq_len: int) -> int:
    """Returns the global batch nearest to `near` that devices of all these `counts` share evenly, whatever part of them
    is data parallel: `near` itself where they do, else a multiple of usual micro-batches too, as far as a step keeps a
    usual number of tokens. Where one sequence a device would exceed `MOST_TOKENS`, fewer devices share it.
    """
    devices, largest = math.lcm(*counts), max(1, MOST_TOKENS // seq_len)
    if near % devices == 0 and near <= largest:
        return near
    usual = max(_USUAL_TOKENS // seq_len, near)
    sizes = [size for size in (*micro_batches, *_USUAL_SIZES) if devices * size <= usual]
    step = devices * max(sizes, default=1)
    if step > largest:
        step = max(divisor for divisor in divisors(devices) if divisor <= largest)
    times = max(1, min(math.floor(near / step + 0.5), largest // step))
    return times * step
