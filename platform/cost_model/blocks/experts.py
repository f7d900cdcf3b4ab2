"""Costs of blocks with experts: a dense block as wide as one token's experts together, with different feed-forward
products (on the weights of all experts) and with passes that sort the rows for the experts and back.

All experts are assumed to receive equally many tokens, as with forced balance, unless `Columns.blocks["fullest"]`
states how many times the mean the fullest rank receives of the exchanged rows. With expert parallelism each rank
multiplies as many rows as without, for fewer experts; the exchange is in `degrees/ep.py`.
"""

import dataclasses
import functools
import operator

import numpy as np

from platform.cost_model import constants
from platform.cost_model.blocks.dense import KERNEL_S, DenseCosts
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.compute import UNIT_VALUES, backward_matmul_s, matmul_s, unless_frozen
from platform.cost_model.degrees.ep import rows_of_token
from platform.cost_model.hardware import BANDWIDTH_SHARE

LAUNCHES = constants.words("experts", "LAUNCHES")
REPEATED_PASSES = constants.number("experts", "REPEATED_PASSES")
GROUPED_RATE = constants.number("experts", "GROUPED_RATE")
ROW_ACCESSES = constants.words("experts", "ROW_ACCESSES")
ROUTER_BYTES = constants.number("experts", "ROUTER_BYTES")
ROUTING_BYTES = constants.words("experts", "ROUTING_BYTES")
SORTS = constants.words("experts", "SORTS")
SORT_KERNELS = constants.words("experts", "SORT_KERNELS")
PLACE_BYTES = {"own": 24.0, "received": 44.0}
"""Bytes saved per token and chosen expert, 8 per number: positions in the sort order and the choice; if ranks exchange
rows, also the sender's and receiver's positions, with notes (`trainers/kernels/experts.py`, `dispatch.py`).
"""


class _ExpertsCosts(DenseCosts):
    def attention_s(self, c: Columns, tokens: Array) -> tuple[Array, Array]:
        return _with_count(c, *super().attention_s(c, tokens))

    def products_s(self, c: Columns, tokens: Array) -> tuple[Array, Array]:
        h, heads, chosen = c.hidden, c.attention_width, c.blocks["experts_per_token"]
        shapes = (((heads + 2 * c.kv_width) / c.tp, h), (h, heads / c.tp))
        rows = tokens * chosen * _unevenness(c)
        groups = np.maximum(np.minimum(c.blocks["num_experts"] / c.parts("experts"), rows), 1.0)
        ffn = c.blocks["ffn"] / c.tp  # other software splits experts too
        router = _as_router(c), tokens, c.blocks["num_experts"], h
        forward = [*(matmul_s(c, tokens, *shape) for shape in shapes), matmul_s(*router)]
        backward = [*(backward_matmul_s(c, tokens, *shape) for shape in shapes), backward_matmul_s(*router)]
        has_shared = c.blocks["shared_ffn"] > 0
        if np.any(has_shared):
            shared = np.where(has_shared, c.blocks["shared_ffn"], 1.0) / c.tp  # avoids a product of width 0
            for shape in ((2 * shared, h), (h, shared)):
                forward.append(np.where(has_shared, matmul_s(c, tokens, *shape), 0.0))
                backward.append(np.where(has_shared, backward_matmul_s(c, tokens, *shape), 0.0))
        for width, depth in ((2 * ffn, h), (h, ffn)):
            forward.append(_of_experts_s(c, rows, width, depth, groups))
            backward.append(_of_experts_s(c, rows, depth, width, groups))
            of_weights = _of_experts_s(c, groups * depth, width, rows / groups, groups)
            backward.append(unless_frozen(c, of_weights))
        return _with_count(c, functools.reduce(operator.add, forward), functools.reduce(operator.add, backward))

    def last_product_s(self, c: Columns, tokens: Array) -> Array:
        """Returns 0: the router's gradient needs the output of the experts."""
        return np.zeros(())

    def passes_s(self, c: Columns, tokens: Array) -> tuple[Array, Array]:
        forward, backward = super().passes_s(_as_wide(c), tokens)
        rows = tokens * c.blocks["experts_per_token"] * _unevenness(c)
        a_row = c.hidden * c.compute_bytes / (c.bandwidth * BANDWIDTH_SHARE)
        travelling = tokens * _travelling(c) * ROW_ACCESSES["received"]
        accesses, accesses_backward = (
            rows * np.where(_is_fused(c), ROW_ACCESSES["compiled" + way], ROW_ACCESSES["eager" + way]) + travelling
            for way in ("", "_backward")
        )
        casts, scores = tokens * _cast_bytes(c), tokens * c.blocks["num_experts"]
        moved = casts + scores * ROUTING_BYTES["score"] + rows * ROUTING_BYTES["row"]
        moved_back = casts + scores * ROUTING_BYTES["score_backward"]
        bandwidth = c.bandwidth * BANDWIDTH_SHARE
        # Weights are broadcast over rows, and embedding bags sum them, without vectorised loads (ATen,
        # EmbeddingBag.cu): two values for each of a row in each pass.
        alone = np.where(c.parts("experts") > 1, 2 * rows * c.hidden / (c.units * UNIT_VALUES), 0.0)
        kernels = np.where(c.grouped_experts > 0, self.further_launches(c), 0.0)
        sorting = np.where(c.grouped_experts > 0, SORTS["own"] * SORT_KERNELS["own"], 0.0)
        sorting = np.where(c.parts("experts") > 1, SORTS["received"] * SORT_KERNELS["received"], sorting)
        return _with_count(
            c,
            forward + accesses * a_row + moved / bandwidth + alone + KERNEL_S * (kernels + sorting),
            backward + accesses_backward * a_row + moved_back / bandwidth + alone + KERNEL_S * kernels,
        )

    def passes_again_s(self, c: Columns, passes: Array) -> Array:
        return np.where(
            _is_fused(c) & (c.compiled_calls > 0), REPEATED_PASSES * passes, super().passes_again_s(c, passes)
        )

    def further_launches(self, c: Columns) -> Array:
        """Returns the kernels for routing and sorting, or for the loop over experts."""
        loop = LAUNCHES["expert"] * np.minimum(c.blocks["num_experts"], _rows(c))
        sorting = np.where(_is_fused(c), LAUNCHES["compiled"], LAUNCHES["grouped"])
        sorting = sorting + np.where(c.parts("experts") > 1, LAUNCHES["received"], 0.0)
        return np.where(c.grouped_experts > 0, sorting, loop)

    def saved_bytes(self, c: Columns, held: Array) -> tuple[Array, Array]:
        """Returns the bytes (saved for the backward pass, transient in it). In addition to a dense block it saves the
        rows that experts read and write, the router's fp32 scores and probabilities, and the positions in the sort
        order.
        """
        saved, transient = super().saved_bytes(_as_wide(c), held)
        tokens, is_shared = c.micro_batch * c.seq_len / c.cp, c.parts("experts") > 1
        a_token, rows = c.hidden * c.compute_bytes, _rows(c) * c.hidden * c.compute_bytes
        is_selective, is_plain = c.selective_checkpointing > 0, (c.fused == 0) & (c.own_mesh > 0)
        router = tokens * c.blocks["num_experts"] * ROUTER_BYTES
        places = _rows(c) * np.where(is_shared, PLACE_BYTES["received"], PLACE_BYTES["own"])
        norms = np.where(is_plain, tokens * _norm_bytes(c), 0.0)
        # Selective checkpointing saves only the outputs of products: norms and sorted rows are recomputed. Without it
        # the router's product saves its input, the second norm's output, in fp32 in place of the products' type.
        wider = np.where(c.own_mesh > 0, tokens * np.maximum(4.0 - c.compute_bytes, 0.0) * c.hidden, 0.0)
        norms = norms + wider + np.where(c.fused > 0, _normed_heads(c), 0.0)
        of_all = saved + router + places + np.where(is_selective, rows, 2 * rows + norms)
        # The gradient of a weighted row exists at the same time as the row's gradient and, before it is summed, the
        # weight's; the gradient of a token's residual is also held. Compiled code is assumed to hold rows as received
        # and as returned.
        weighting = np.where(is_shared, 3.0, 2.0) * rows + tokens * a_token
        plain = np.maximum(weighting, transient + rows) + np.where(is_selective, rows + norms, 0.0)
        sent = tokens * _travelling(c) * a_token
        return of_all, np.where(is_plain, plain, transient + 2 * rows + 2 * sent)

    def kept_bytes(self, c: Columns, everything: Array, block_input: Array) -> tuple[Array, Array]:
        """Returns the bytes of a block that stay until its backward pass (with a budget, with full checkpointing).

        Torch 2.11's compiler does not recompute what a checkpoint's autograd functions return (pytorch/pytorch#177396
        mends it): of these only the sorted rows are read by products, so it saves them. Where ranks share out experts,
        or sequences, the checkpoint is another (`trainers.engines.model_preparation`).
        """
        kept, checkpoint = super().kept_bytes(c, everything, block_input)
        is_whole = _is_fused(c) & (c.own_mesh > 0) & (c.parts("tokens") == 1)
        checkpoint = checkpoint + np.where(is_whole, _rows(c) * c.hidden * c.compute_bytes, 0.0)
        if np.any(c.budget < 1):
            more, few = self._by_budget(c, everything, block_input)
            kept = np.where(few, _dense_products(c) + block_input, np.where(more, self._of_products(c), kept))
        return kept, checkpoint

    def budget_again_s(self, c: Columns, tokens: Array, forward: Array) -> Array:
        again = super().budget_again_s(c, tokens, forward)
        if not np.any(c.budget < 1):
            return again
        split = np.where(c.sequence_parallel > 0, c.tp, 1.0)
        block_input = c.tokens * c.hidden * c.compute_bytes / split
        everything, _ = self.saved_bytes(c, c.software.saves_gathered)
        more, few = self._by_budget(c, everything, block_input)
        shapes = ((c.attention_width + 2 * c.kv_width, c.hidden), (c.hidden, c.attention_width))
        products = functools.reduce(operator.add, (matmul_s(c, tokens, *shape) for shape in shapes))
        passes, _ = self.passes_s(c, tokens)
        return np.where(few, forward - products, np.where(more, self.passes_again_s(c, passes), again))

    def _by_budget(self, c: Columns, everything: Array, block_input: Array) -> tuple[Mask, Mask]:
        """Returns the rows whose compiler keeps (the outputs of all products, those of dense products alone) with an
        activation budget. It takes the first set that is smaller than the budget: without its rules against longer
        recomputation, then without its list of recomputable operations. Products that it counts as intensive are kept
        in either; grouped ones, cuDNN's and flexible attention are none of these (torch 2.11 and 2.13,
        functorch/partitioners.py: choose_saved_values_set, compute_intensive_ops).
        """
        room = c.budget * (everything - block_input)
        compiled = (c.budget < 1) & _is_fused(c) & (c.own_mesh > 0) & (c.grouped_experts > 0) & (c.flash > 0)
        more = compiled & (self._of_products(c) - block_input < room)
        return more, compiled & ~more & (_dense_products(c) < room)

    def _of_products(self, c: Columns) -> Array:
        """Returns the bytes of a block's input and of all products' and attention's outputs."""
        selective = dataclasses.replace(c, selective_checkpointing=np.ones(()))
        return self.saved_bytes(selective, c.software.saves_gathered)[0] + _normed_heads(c)


def _normed_heads(c: Columns) -> Array:
    """Returns the bytes of queries and keys before their norm, which compiled code saves in addition to the normed."""
    return c.tokens * c.compute_bytes * c.blocks["normed_heads"] * (c.attention_width + c.kv_width)


def _dense_products(c: Columns) -> Array:
    """Returns the bytes of the outputs of a block's products, the router's in fp32, without those of its experts."""
    scores = 4.0 * c.blocks["num_experts"]
    return c.tokens * (c.compute_bytes * (c.hidden + c.attention_width + 2 * c.kv_width) + scores)


def _norm_bytes(c: Columns) -> Array:
    """Returns the bytes per token that plain RMS norms save in addition to their inputs and outputs: the values before
    the weight, and a wider copy of 16-bit values; for normed queries and keys also their input.
    """
    of_heads = np.where(c.compute_bytes < 4, 6.0, 8.0) * c.blocks["normed_heads"]
    return 4.0 * 2 * c.hidden + of_heads * (c.attention_width + c.kv_width)


def _as_router(c: Columns) -> Columns:
    """Returns the columns whose products are the router's: of this project in fp32 on the units for fp32, of other
    software in the type of all products.
    """
    in_fp32 = c.own_mesh > 0
    return dataclasses.replace(
        c,
        matmul_flops=np.where(in_fp32, c.plain_flops, c.matmul_flops),
        compute_bytes=np.where(in_fp32, 4.0, c.compute_bytes),
        cast_bytes=np.where(in_fp32, 0.0, c.cast_bytes),
    )


def _cast_bytes(c: Columns) -> Array:
    """Returns the bytes that pass through memory for a token's cast to the router's type, or its gradient's back."""
    return np.where((c.own_mesh > 0) & (c.compute_bytes < 4), c.hidden * ROUTING_BYTES["cast"], 0.0)


def _with_count(c: Columns, forward: Array, backward: Array) -> tuple[Array, Array]:
    """Returns the seconds (forward, backward). If a separate forward pass counts the tokens of experts, it is added to
    the backward time, because recomputation does not repeat it.
    """
    return forward, backward + c.blocks["counted_ahead"] * forward


def _rows(c: Columns) -> Array:
    """Returns the rows of a micro-batch that the experts of a block multiply on the fullest rank."""
    return c.micro_batch * c.seq_len / c.cp * c.blocks["experts_per_token"] * _unevenness(c)


def _travelling(c: Columns) -> Array:
    """Returns the rows per token that ranks exchange; 0 if every rank has all experts."""
    return np.where(c.parts("experts") > 1, rows_of_token(c), 0.0)


def _unevenness(c: Columns) -> Array:
    """Returns the rows of the fullest rank divided by the mean; 1 if every rank has all experts."""
    return np.where(c.parts("experts") > 1, c.blocks["fullest"], 1.0)


def _is_fused(c: Columns) -> Mask:
    """Returns the rows whose sorting and summing are compiled together with the block. With expert parallelism only the
    activation is compiled.
    """
    return (c.fused > 0) & (c.parts("experts") == 1)


def _as_wide(c: Columns) -> Columns:
    """Returns the columns of dense blocks as wide as the experts of one token together."""
    chosen = c.blocks["experts_per_token"] * _unevenness(c)
    return dataclasses.replace(c, blocks={**c.blocks, "ffn": c.blocks["ffn"] * chosen + c.blocks["shared_ffn"]})


def _of_experts_s(c: Columns, rows: Array, width: Array, depth: Array, groups: Array) -> Array:
    """Returns the seconds of one product of all experts: grouped, or one expert after the other."""
    grouped = matmul_s(_as_grouped(c), rows, width, depth, groups)
    if not np.any(c.grouped_experts == 0):
        return grouped
    alone = groups * matmul_s(c, rows / groups, width, depth)
    return np.where(c.grouped_experts > 0, grouped, alone)


def _as_grouped(c: Columns) -> Columns:
    """Returns the columns whose products are one grouped kernel's: of torch on this project's devices; the rates of
    other software's runs contain theirs.
    """
    return dataclasses.replace(c, matmul_flops=c.matmul_flops * np.where(c.own_mesh > 0, GROUPED_RATE, 1.0))


COSTS = _ExpertsCosts()
