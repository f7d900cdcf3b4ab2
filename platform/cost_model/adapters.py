"""Costs of low-rank adapters beside a block's frozen linear layers: two thin products and a sum for each layer.

Every layer's thin products read its inputs and write its outputs: together they are as one product of all widths.
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
"""Weights of an adapter."""
SUM_ACCESSES = constants.words("adapters", "SUM_ACCESSES")


def added_s(c: Columns, tokens: Array) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward) that adapters add to a block: their products, the sums of their outputs
    and of their inputs' gradients with those of the layers, and dequantising the layers' weights in NF4.
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
    dequantising = quantised.moved_bytes(c, c.fused) / (c.bandwidth * BANDWIDTH_SHARE)  # anew for the input's gradient
    return (
        np.where(is_there, forward + outputs * per_value + dequantising, 0.0),
        np.where(is_there, backward + inputs * per_value + dequantising, 0.0),
    )


def host_s(c: Columns) -> tuple[Array, Array]:
    """Returns the host seconds (forward, backward) that adapters add to a block: their kernels, less those of the
    gradients that frozen weights lack, and the tensors that its compiled code takes.
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
    """Returns the bytes besides all that is held while a model's weights are drawn, which a small micro-batch's step
    may stay below: the largest in fp32, and under shards the rest of what stands outside the blocks.
    """
    drawn = np.maximum(4.0 * c.rank_table, quantised.quantising_bytes(c))
    return drawn + c.embedding_parameters * c.compute_bytes * (1 - 1 / c.shard)


def saved_bytes(c: Columns) -> tuple[Array, Array]:
    """Returns the bytes (saved for the backward pass, transient in it) that adapters add to a block: the values between
    both products, and a weight that is dequantised.
    """
    inner = c.tokens * c.compute_bytes * c.adapter_rank * c.adapted_layers
    beside = c.tokens * c.compute_bytes * c.hidden * (c.adapter_rank > 0)
    return inner, inner + beside + quantised.transient_bytes(c, c.fused)
