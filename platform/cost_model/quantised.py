"""Frozen linear layers of a block in NF4 (`trainers.spec.nf4`): their bytes, and those that dequantising moves."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from platform.cost_model import constants
from platform.cost_model.column_groups import Array, ModelColumns
from trainers.spec.nf4 import BLOCK, PIECE, held_bytes

LAUNCHES = constants.words("nf4", "LAUNCHES")
INDEX_BYTES = constants.number("nf4", "INDEX_BYTES")
COMPARED = constants.number("nf4", "COMPARED")
TENSORS = 3.0
"""Tensors of a layer in place of its weight, less one: codes, scales, factors and the levels of a byte."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QuantisedLayers:
    """The linear layers of a block whose weights are in NF4; of another block all zeros."""

    weights: int
    largest: int
    """Weights of the largest layer."""
    saved: float
    """Bytes that a block takes less than with weights in the type of products."""


def quantised_layers(sizes: Iterable[tuple[int, int]], value_bytes: float) -> QuantisedLayers:
    """Returns the sums over layers of these (outputs, inputs), for products of values of `value_bytes`."""
    counts = [outputs * inputs for outputs, inputs in sizes]
    return QuantisedLayers(
        weights=sum(counts),
        largest=max(counts, default=0),
        saved=sum(count * value_bytes - held_bytes(count, value_bytes) for count in counts),
    )


def moved_bytes(c: ModelColumns, fused: Array) -> Array:
    """Returns the bytes that dequantising the weights of a block moves: they are written in the type of products, which
    a product then reads as any weight. Eager code writes and reads indices and levels besides.
    """
    stored = 0.5 + 1 / BLOCK
    eager = stored + INDEX_BYTES + 3 * c.compute_bytes
    return c.quantised_weights * np.where(fused > 0, stored + c.compute_bytes, eager)


def transient_bytes(c: ModelColumns, fused: Array) -> Array:
    """Returns the bytes of the largest weight while it is dequantised: itself, and its levels in eager code."""
    return c.largest_quantised * c.compute_bytes * np.where(fused > 0, 1.0, 2.0)


def quantising_bytes(c: ModelColumns) -> Array:
    """Returns the bytes besides all that is held while the largest weight is made: drawn in fp32 and cast to the type
    of products, then a piece of it compared with all levels.
    """
    piece = np.minimum(c.largest_quantised, PIECE) * (16 * COMPARED * c.compute_bytes + 8)
    return np.maximum(c.largest_quantised * (4 + c.compute_bytes), c.largest_quantised * c.compute_bytes + piece)
