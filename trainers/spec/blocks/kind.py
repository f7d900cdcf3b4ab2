"""`BlockKind`: parameters and computations of one kind of block. Dense blocks are the base of the other kinds."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

from trainers.spec.architectures import architecture_of
from trainers.spec.model_sizes import ModelSizes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """The weight of a linear layer, or several of one shape."""

    rows: int
    width: int
    count: int = 1

    @property
    def values(self) -> int:
        return self.rows * self.width * self.count


class BlockKind:
    """Attention, and a feed-forward block of two matrices, or three if it is gated.

    A kind with other parameters or products overrides the methods that count them. `costs` names the file in
    `platform/cost_model/blocks` that predicts its time and memory.
    """

    name = "dense"
    costs = "dense"
    sizes: ClassVar[Mapping[str, Callable[[ModelSizes], float]]] = {
        "ffn": lambda spec: spec.ffn_size,
        "gated": lambda spec: architecture_of(spec.architecture).gated,
    }
    """Sizes for its cost formulas, by their names in `Columns.blocks`."""

    def count(self, spec: ModelSizes) -> int:
        """Returns the number of the model's blocks of this kind, if the model has the kind at all."""
        return spec.num_layers

    def parameters(self, spec: ModelSizes) -> int:
        """Returns the exact number of parameters of one block."""
        return architecture_of(spec.architecture).parameters_per_layer(spec)

    def active_parameters(self, spec: ModelSizes) -> int:
        """Returns the number of one block's parameters that are used for one token."""
        return self.parameters(spec)

    def product_parameters(self, spec: ModelSizes) -> int:
        """Returns the number of parameters in one token's matrix products, without norms and biases."""
        return architecture_of(spec.architecture).matrices_per_layer(spec)

    def last_product(self, spec: ModelSizes) -> int:
        """Returns the number of parameters of a block's last product, whose output the backward pass does not need."""
        return self.inner_width(spec) * spec.hidden_size

    def saved_weights(self, spec: ModelSizes) -> int:
        """Returns the number of parameters whose FP8 weights a compiled block saves for its backward pass.

        These are gate, up and down of a gated feed-forward block, else the last matrix (observed with torch 2.13's
        partitioner on Llama's and GPT-NeoX's blocks).
        """
        return self.last_product(spec) * (3 if architecture_of(spec.architecture).gated else 1)

    def inner_width(self, spec: ModelSizes) -> int:
        """Returns the width between the products of the feed-forward block."""
        return spec.ffn_size

    def keys_per_query(self, spec: ModelSizes, seq_len: int) -> float:
        """Returns the number of keys that a query attends to, averaged over a causal sequence: half of it."""
        return seq_len / 2

    def saved_width(self, spec: ModelSizes) -> int:
        """Returns the number of values per token that a block's products read or write.

        These are its input, queries, keys, values, attention's output, the second residual and the feed-forward block's
        inner values (arXiv 2205.05198, section 4.1).
        """
        inner = (2 if architecture_of(spec.architecture).gated else 1) * self.inner_width(spec)
        return 2 * spec.hidden_size + 2 * spec.attention_width + 2 * spec.num_kv_heads * spec.head_dim + inner

    def matrices(self, spec: ModelSizes) -> tuple[Matrix, ...]:
        """Returns the weights of a block's linear layers; queries, keys and values count as one matrix."""
        width, hidden = spec.attention_width, spec.hidden_size
        in_feed_forward = 3 if architecture_of(spec.architecture).gated else 2
        return (
            Matrix(rows=width + 2 * spec.num_kv_heads * spec.head_dim, width=hidden),
            Matrix(rows=hidden, width=width),
            Matrix(rows=self.inner_width(spec), width=hidden, count=in_feed_forward),
        )

    def divided_sizes(self, spec: ModelSizes) -> tuple[tuple[int, str], ...]:
        """Returns (size, name) of each quantity of a block that tensor parallelism cuts."""
        return (
            (spec.num_heads, "heads"),
            (spec.num_kv_heads, "key/value heads"),
            (self.inner_width(spec), "columns of the feed-forward block"),
        )

    def linear_sizes(self, spec: ModelSizes) -> dict[str, int]:
        """Returns the sizes of a block's linear layers by name."""
        return {
            "hidden_size": spec.hidden_size,
            "width of all heads": spec.attention_width,
            "width of all key/value heads": spec.num_kv_heads * spec.head_dim,
            "ffn_size": self.inner_width(spec),
        }
