"""The first layouts of a space where nothing is predicted: spread over the values of each axis."""

from collections.abc import Mapping, Sequence
from typing import Any


def spread(rows: Sequence[Mapping[str, Any]], turn: int) -> int:
    """Returns the place of the layout for this turn, from 0, among `rows` of values by axis: the first one at turn 0.

    Axis by axis a value is chosen among those that are left, so that layouts of a value which few have get their share;
    in a product of axes that is a spread over all layouts. Turns are a Kronecker sequence, one dimension an axis, whose
    steps are powers of the generalised golden ratio (Roberts, "The unreasonable effectiveness of quasirandom
    sequences", 2018): two turns are apart on most axes.
    """
    ratio = _golden_ratio(len(rows[0]))
    left = list(range(len(rows)))
    for number, axis in enumerate(rows[0], start=1):
        values = list(dict.fromkeys(rows[place][axis] for place in left))
        chosen = values[int(turn * ratio**-number % 1 * len(values))]
        left = [place for place in left if rows[place][axis] == chosen]
    return left[0]


def _golden_ratio(dimensions: int) -> float:
    """Returns the root above 1 of x^(dimensions + 1) = x + 1; the golden ratio for one dimension."""
    ratio = 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    return ratio
