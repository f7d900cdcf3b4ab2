"""Costs of low-rank adapters on a block's frozen linear layers: two narrow products and a sum per layer.

The narrow products of all layers read the layers' inputs and write their outputs; they are computed as one product of
the summed widths.
"""

import numpy as np

from platform.cost_model import constants, quantised
from platform.cost_model.columns import Array, Columns
from platform.cost_model.compute import matmul_s
from platform.cost_model.hardware import BANDWIDTH_SHARE

LAUNCH_S = constants.number("host", "LAUNCH_S")
LAUNCHES = constants.words("adapters", "LAUNCHES")
BACKWARD_LAUNCHES = constants.words("adapters", "BACKWARD_LAUNCHES")
COMPILED_LAUNCH_S = constants.number("adapters", "COMPILED_LAUNCH_S")
TENSOR_S = constants.number("adapters", "TENSOR_S")
TENSORS = 2.0
"""Number of weight tensors of an adapter."""
SUM_ACCESSES = constants.words("adapters", "SUM_ACCESSES")


def added_s(c: Columns, tokens: Array) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) that adapters add to a block: their products, adding their outputs and
    input gradients to the layers' ones, and dequantising NF4 weights.
    """
    width = c.parts("width")
    rank, inputs, outputs = (np.maximum(value, 1.0) for value in (c.adapter_rank, c.adapted_inputs, c.adapted_outputs))
    down, up = (tokens, rank, inputs / width), (tokens, outputs / width, rank)
    forward = matmul_s(c, *down) + matmul_s(c, *up)
    backward = sum(
        matmul_s(c, rows, depth, columns) + matmul_s(c, depth, columns, rows) for rows, columns, depth in (down, up)
    )
    accesses = np.where(c.fused > 0, SUM_ACCESSES["compiled"], SUM_ACCESSES["eager"])
    per_value = accesses * tokens * c.compute_bytes / (c.bandwidth * BANDWIDTH_SHARE) / width
    is_there = c.adapter_rank > 0
    dequantising = quantised.moved_bytes(c, c.fused) / (c.bandwidth * BANDWIDTH_SHARE)  # again for the input's gradient
    return (
        np.where(is_there, forward + outputs * per_value + dequantising, 0.0),
        np.where(is_there, backward + inputs * per_value + dequantising, 0.0),
    )


def host_s(c: Columns) -> tuple[Array, Array]:
    """Returns the host seconds (forward, backward) that adapters add to a block: their kernels, minus those for
    gradients of frozen weights, plus the handling of extra tensors by compiled code.
    """
    if not c.has_adapters:
        return np.zeros(()), np.zeros(())
    is_compiled, in_nf4 = c.fused > 0, c.quantised_weights > 0
    of_weights, first, second = (
        np.where(is_compiled, kinds["compiled"], kinds["eager"])
        for kinds in (quantised.LAUNCHES, LAUNCHES, BACKWARD_LAUNCHES)
    )
    of_weights = np.where(in_nf4, of_weights, 0.0)
    second = second + np.where(c.selective_checkpointing > 0, BACKWARD_LAUNCHES["repeated"], 0.0)
    layers = c.adapted_layers * (c.adapter_rank > 0)
    launch_s = np.where(is_compiled, COMPILED_LAUNCH_S, LAUNCH_S)
    num_tensors = np.where(is_compiled, TENSORS + np.where(in_nf4, quantised.TENSORS, 0.0), 0.0)
    forward, backward = (layers * (count + of_weights) * launch_s for count in (first, second))
    return forward + layers * num_tensors * TENSOR_S, backward


def filling_bytes(c: Columns) -> Array:
    """Returns the bytes needed in addition to the loaded states while weights are initialised: the largest weight in
    fp32 and, with shards, the rest of the embeddings. With a small micro-batch this exceeds the step's peak.
    """
    drawn = np.maximum(4.0 * c.rank_table, quantised.quantising_bytes(c))
    return drawn + c.embedding_parameters * c.compute_bytes * (1 - 1 / c.shard)


def saved_bytes(c: Columns) -> tuple[Array, Array]:
    """Returns the bytes (saved for the backward pass, transient in it) that adapters add to a block: the values between
    both products, and a dequantised weight.
    """
    inner = c.tokens * c.compute_bytes * c.adapter_rank * c.adapted_layers
    beside = c.tokens * c.compute_bytes * c.hidden * (c.adapter_rank > 0)
    return inner, inner + beside + quantised.transient_bytes(c, c.fused)
