"""Frozen linear layers of a block in NF4 (`trainers.spec.nf4`): their bytes, and the traffic of dequantising."""

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
"""Tensors of an NF4 layer (codes, scales, factors and the levels of a byte) in addition to a weight's one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QuantisedLayers:
    """The linear layers of a block with NF4 weights; zeros for other blocks."""

    weights: int
    largest: int
    """Number of weights of the largest layer."""
    saved: float
    """Bytes that a block saves compared with weights in the products' type."""


def quantised_layers(sizes: Iterable[tuple[int, int]], value_bytes: float) -> QuantisedLayers:
    """Returns the sums over layers with these (outputs, inputs), for products of values of `value_bytes`."""
    counts = [outputs * inputs for outputs, inputs in sizes]
    return QuantisedLayers(
        weights=sum(counts),
        largest=max(counts, default=0),
        saved=sum(count * value_bytes - held_bytes(count, value_bytes) for count in counts),
    )


def moved_bytes(c: ModelColumns, fused: Array) -> Array:
    """Returns the bytes moved to dequantise a block's weights into the products' type, without the product's own read.
    Eager code also writes and reads indices and levels.
    """
    stored = 0.5 + 1 / BLOCK
    eager = stored + INDEX_BYTES + 3 * c.compute_bytes
    return c.quantised_weights * np.where(fused > 0, stored + c.compute_bytes, eager)


def transient_bytes(c: ModelColumns, fused: Array) -> Array:
    """Returns the bytes of the largest weight while dequantised: the weight itself and, in eager code, its levels."""
    return c.largest_quantised * c.compute_bytes * np.where(fused > 0, 1.0, 2.0)


def quantising_bytes(c: ModelColumns) -> Array:
    """Returns the temporary bytes while the largest weight is created: drawn in fp32 and cast to the products' type,
    then one piece compared with all levels.
    """
    piece = np.minimum(c.largest_quantised, PIECE) * (16 * COMPARED * c.compute_bytes + 8)
    return np.maximum(c.largest_quantised * (4 + c.compute_bytes), c.largest_quantised * c.compute_bytes + piece)
