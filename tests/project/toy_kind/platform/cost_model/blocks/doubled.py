"""Costs of the toy kind: two more products, and their inner values saved."""

from platform.cost_model.blocks.dense import DenseCosts
from platform.cost_model.columns import Array, Columns
from platform.cost_model.compute import backward_matmul_s, matmul_s


class _Doubled(DenseCosts):
    def products_s(self, c: Columns, tokens: Array) -> tuple[Array, Array]:
        forward, backward = super().products_s(c, tokens)
        shapes = ((c.blocks["doubled_ffn"] / c.tp, c.hidden), (c.hidden, c.blocks["doubled_ffn"] / c.tp))
        for shape in shapes:
            forward = forward + matmul_s(c, tokens, *shape)
            backward = backward + backward_matmul_s(c, tokens, *shape)
        return forward, backward

    def saved_bytes(self, c: Columns, held: Array) -> tuple[Array, Array]:
        saved, transient = super().saved_bytes(c, held)
        tokens = c.micro_batch * c.seq_len / c.cp
        return saved + tokens * c.compute_bytes * 2 * c.blocks["doubled_ffn"] / c.tp, transient


COSTS = _Doubled()
