"""The form of frozen weights in 4 bits (NF4 with double quantisation, arXiv 2305.14314), without torch.

Each weight is the nearest of 16 levels times the scale of its block of 64; scales are whole numbers of 8 bits, divided
by a factor for each 256 of them, plus their mean. Numbers and their order are those of torchao's `to_nf4`.
"""

import math

BLOCK = 64
"""Weights that have one scale; a row of a weight holds whole blocks."""
MOST_SCALES = 256
"""Scales that have one factor, at most."""
PIECE = 2**20
"""Weights that are compared with all levels at a time."""
CODES, SCALES, FACTORS = "nf4_codes", "nf4_scales", "nf4_factors"
"""Parameters of a layer in place of `weight` [rows, width]: two levels a byte [rows, width / 2], scales [rows, width /
64], and the factors with the mean of the scales as their last value, in the type that the weight had."""


def scales_of_factor(num_weights: int) -> int:
    """Returns how many scales of a weight have one factor: 256, or fewer where these would not be whole."""
    return math.gcd(MOST_SCALES, num_weights // BLOCK)


def held_bytes(num_weights: int, value_bytes: float) -> float:
    """Returns the bytes of a weight in NF4 whose values had `value_bytes` each before."""
    scales = num_weights / BLOCK
    return num_weights / 2 + scales + value_bytes * (scales / scales_of_factor(num_weights) + 1)


def is_quantised(name: str) -> bool:
    """Returns whether the parameter of that name is a part of a weight in NF4."""
    return name.endswith((f".{CODES}", f".{SCALES}", f".{FACTORS}"))
