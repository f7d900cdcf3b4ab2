"""Costs of compressed gradients: the bytes that DDP still exchanges, and the passes that squeeze them.

PowerSGD as torch's hook does it (`powerSGD_hook`, arXiv 1905.13727): a matrix of n x m becomes factors of r (n + m)
where that is less than half of it; vectors travel whole. Nothing of it was measured on a GPU yet.
"""

from typing import TYPE_CHECKING

import numpy as np

from platform.cost_model import constants
from trainers.values.spec import ModelSpec

if TYPE_CHECKING:  # `columns` asks this room what a recipe exchanges
    from platform.cost_model.columns import Array, Columns

POWERSGD_PASSES = constants.number("compression", "POWERSGD_PASSES")
MATRICES_OF_A_BLOCK = constants.number("compression", "MATRICES_OF_A_BLOCK")
MATRIX_HOST_S = constants.number("compression", "MATRIX_HOST_S")


def factor_rank(compression: str) -> int:
    """Returns the rank of PowerSGD's factors by the recipe's word, or by a table's word without a rank; 0 for other
    words.
    """
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
    """Returns (rows, width, how many): the tables and the blocks' weights; queries, keys and values as one."""
    hidden, blocks = model.hidden_size, model.num_layers
    return (
        (model.vocab_size, hidden, 1 if model.tied_embeddings else 2),
        (model.max_positions, hidden, int(model.position == "learned")),
        (model.attention_width + 2 * model.num_kv_heads * model.head_dim, hidden, blocks),
        (hidden, model.attention_width, blocks),
        (model.ffn_size, hidden, (3 if model.gated else 2) * blocks),
    )


def held_bytes(c: "Columns") -> "Array":
    """Returns the bytes per parameter that stay from step to step: PowerSGD's error feedback is a whole gradient."""
    return np.where(c.factor_rank > 0, c.state_bytes, 0.0)


def passing_bytes(c: "Columns") -> "Array":
    """Returns the bytes of the largest bucket's copies at the end of the backward pass; a table is a bucket of its own.

    PowerSGD holds the gradient with its error beside the errors that it replaces; bf16 what is under way.
    """
    largest = np.maximum(c.bucket_bytes, c.table_parameters / c.tp * c.state_bytes)
    return largest * np.where(c.factor_rank > 0, 2.0, np.where(c.compression < 1, 0.5, 0.0))


def squeezing_s(c: "Columns", owned: "Array", bandwidth: "Array") -> "Array":
    """Returns the seconds of one exchange's passes over a rank's gradients and back, by memory traffic and the host."""
    casts = owned * 2 * (c.state_bytes + 2) / bandwidth
    factors = POWERSGD_PASSES * owned * c.state_bytes / bandwidth + c.layers * MATRICES_OF_A_BLOCK * MATRIX_HOST_S
    return np.where(c.factor_rank > 0, factors, np.where(c.compression < 1, casts, 0.0))
