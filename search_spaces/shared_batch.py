"""A global batch that any number of data-parallel ranks on given numbers of devices divide evenly."""

import math
from collections.abc import Sequence

from search_spaces.degrees import divisors

MOST_TOKENS = 64_000_000
"""Largest number of tokens in a step that this project assumes or advises."""
_USUAL_TOKENS = 4_194_304
"""Number of tokens in a step up to which a batch is also made a multiple of larger micro-batches; published runs have
0.5 to 16 million (arXiv 2005.14165, table 2.1; arXiv 2407.21783, table 4).
"""
_USUAL_SIZES = (1, 2, 4, 8, 16)
"""Micro-batches that should divide an assumed batch, so that ladders contain them."""


def shared_batch(near: int, counts: Sequence[int], micro_batches: Sequence[int], seq_len: int) -> int:
    """Returns the global batch nearest to `near` that all numbers of devices in `counts` divide evenly, whatever part
    of them is data parallel. It is `near` itself if they divide it; otherwise a multiple of usual micro-batches too,
    while a step keeps a usual number of tokens. If one sequence per device would exceed `MOST_TOKENS`, fewer devices
    divide it.
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
