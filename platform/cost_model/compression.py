"""Costs of compressed gradients: the bytes that DDP still exchanges, and the passes that compress them.

PowerSGD follows torch's hook (`powerSGD_hook`, arXiv 1905.13727): an n x m matrix becomes factors of r (n + m) values
if these are less than half of it; vectors are not compressed. It was measured only on two H200 with NVLink.
"""

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns
from trainers.spec.engines.ddp import PIECE_VALUES
from trainers.spec.model import ModelSpec

POWERSGD_PASSES = constants.number("compression", "POWERSGD_PASSES")
MATRICES_OF_A_BLOCK = constants.number("compression", "MATRICES_OF_A_BLOCK")
MATRIX_HOST_S = constants.number("compression", "MATRIX_HOST_S")


def factor_rank(compression: str) -> int:
    """Returns PowerSGD's rank from the recipe's word, 1 for a word without a rank; 0 for other compression."""
    name, _, rank = compression.partition("_")
    return int(rank or 1) if name == "powersgd" else 0


def compression_values(model: ModelSpec, compression: str) -> dict[str, float]:
    """Returns the columns of the exchanged gradients."""
    rank, share = factor_rank(compression), 0.5 if compression == "bf16" else 1.0
    if rank:
        saved = sum(count * (rows * width - _exchanged(rows, width, rank)) for rows, width, count in _matrices(model))
        share = 1.0 - saved / model.num_parameters
    return {"compression": share, "factor_rank": rank}


def _exchanged(rows: int, width: int, rank: int) -> int:
    factors = min(rank, rows, width) * (rows + width)
    return factors if 2 * factors < rows * width else rows * width


def _matrices(model: ModelSpec) -> tuple[tuple[int, int, int], ...]:
    """Returns (rows, width, count) of the tables and the blocks' weights; queries, keys and values are one matrix."""
    hidden = model.hidden_size
    of_blocks = [(count, matrix) for kind, count in model.blocks for matrix in kind.matrices(model)]
    return (
        (model.vocab_size, hidden, 1 if model.tied_embeddings else 2),
        (model.max_positions, hidden, int(model.position == "learned")),
        *((matrix.rows, matrix.width, matrix.count * count) for count, matrix in of_blocks),
    )


def held_bytes(c: Columns) -> Array:
    """Returns the bytes per parameter kept between steps: PowerSGD's error feedback is as large as the gradient."""
    return np.where(c.factor_rank > 0, c.state_bytes, 0.0)


def passing_bytes(c: Columns) -> Array:
    """Returns the bytes of the largest bucket's copies at the end of the backward pass; a table is its own bucket.

    PowerSGD keeps its errors in place without a copy; bf16 compression holds the bytes in transit, in pieces of
    `PIECE_VALUES` gradients.
    """
    largest = np.maximum(c.bucket_bytes, c.rank_table * c.state_bytes)
    piece = np.minimum(largest, PIECE_VALUES * c.state_bytes)
    return np.where((c.compression < 1) & (c.factor_rank == 0), 0.5 * piece, 0.0)


def squeezing_s(c: Columns, owned: Array, bandwidth: Array) -> Array:
    """Returns the seconds to compress and decompress a rank's gradients once: memory traffic and host time."""
    casts = owned * 2 * (c.state_bytes + 2) / bandwidth
    factors = POWERSGD_PASSES * owned * c.state_bytes / bandwidth + c.layers * MATRICES_OF_A_BLOCK * MATRIX_HOST_S
    return np.where(c.factor_rank > 0, factors, np.where(c.compression < 1, casts, 0.0))
