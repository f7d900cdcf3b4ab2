"""Storage format of frozen weights in 4 bits (NF4 with double quantisation, arXiv 2305.14314). Imports no torch.

Each weight is the nearest of 16 levels times the scale of its block of 64 weights. Scales are 8-bit integers; each
group of up to 256 is divided by a factor, and their mean is added. Numbers and their order equal the result of
torchao's `to_nf4`.
"""

import math

BLOCK = 64
"""Number of weights that share one scale; a row of a weight holds whole blocks."""
MOST_SCALES = 256
"""Largest number of scales that share one factor."""
PIECE = 2**20
"""Number of weights compared with all levels at a time, which bounds temporary memory."""
CODES, SCALES, FACTORS = "nf4_codes", "nf4_scales", "nf4_factors"
"""Parameters that replace a layer's `weight` [rows, width]: codes, two levels a byte [rows, width / 2]; scales [rows,
width / 64]; and the factors, followed by the mean of the scales, in the weight's original type.
"""


def scales_of_factor(num_weights: int) -> int:
    """Returns how many scales of a weight share one factor: 256, or fewer so that the number divides evenly."""
    return math.gcd(MOST_SCALES, num_weights // BLOCK)


def held_bytes(num_weights: int, value_bytes: float) -> float:
    """Returns the bytes of a weight in NF4 whose values had `value_bytes` each before."""
    scales = num_weights / BLOCK
    return num_weights / 2 + scales + value_bytes * (scales / scales_of_factor(num_weights) + 1)


def is_quantised(name: str) -> bool:
    return name.endswith((f".{CODES}", f".{SCALES}", f".{FACTORS}"))
