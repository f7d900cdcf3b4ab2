"""`BlockKind`: what a model's blocks of one kind are and compute. Dense blocks are the base of the others."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

from trainers.spec.architectures import architecture_of
from trainers.spec.model_sizes import ModelSizes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """A weight of a linear layer, or several of one shape."""

    rows: int
    width: int
    count: int = 1

    @property
    def values(self) -> int:
        """Parameters of all of them."""
        return self.rows * self.width * self.count


class BlockKind:
    """Attention, and a feed-forward block of two matrices, or of three where it is gated.

    A kind that has other parameters or products overrides the methods that count them. `costs` names the file of
    `platform/cost_model/blocks` that prices it.
    """

    name = "dense"
    costs = "dense"
    sizes: ClassVar[Mapping[str, Callable[[ModelSizes], float]]] = {
        "ffn": lambda spec: spec.ffn_size,
        "gated": lambda spec: architecture_of(spec.architecture).gated,
    }
    """Sizes that its costs are computed from, by their names in `Columns.blocks`."""

    def count(self, spec: ModelSizes) -> int:
        """Returns the number of the model's blocks of this kind; a model's other blocks are dense."""
        return spec.num_layers

    def parameters(self, spec: ModelSizes) -> int:
        """Returns the exact number of parameters of one block."""
        return architecture_of(spec.architecture).parameters_per_layer(spec)

    def active_parameters(self, spec: ModelSizes) -> int:
        """Returns the number of parameters that one token passes."""
        return self.parameters(spec)

    def product_parameters(self, spec: ModelSizes) -> int:
        """Returns the number of parameters that take part in a token's products: no norms and no biases."""
        return architecture_of(spec.architecture).matrices_per_layer(spec)

    def last_product(self, spec: ModelSizes) -> int:
        """Returns the number of parameters of a block's last product, whose output no backward pass needs."""
        return self.inner_width(spec) * spec.hidden_size

    def saved_weights(self, spec: ModelSizes) -> int:
        """Returns the number of parameters whose FP8 weights a compiled block saves for its backward pass: gate, up and
        down of a gated feed-forward, else the last (torch 2.13's partitioner on Llama's and GPT-NeoX's blocks).
        """
        return self.last_product(spec) * (3 if architecture_of(spec.architecture).gated else 1)

    def inner_width(self, spec: ModelSizes) -> int:
        """Returns the width between a feed-forward block's products."""
        return spec.ffn_size

    def keys_per_query(self, spec: ModelSizes, seq_len: int) -> float:
        """Returns the keys that a query sees, the mean over a sequence: half of it."""
        return seq_len / 2

    def saved_width(self, spec: ModelSizes) -> int:
        """Returns the values of a token that the products of a block read or write: its input, queries, keys, values,
        attention's output, the second residual and the feed-forward's inner values (arXiv 2205.05198, section 4.1).
        """
        inner = (2 if architecture_of(spec.architecture).gated else 1) * self.inner_width(spec)
        return 2 * spec.hidden_size + 2 * spec.attention_width + 2 * spec.num_kv_heads * spec.head_dim + inner

    def matrices(self, spec: ModelSizes) -> tuple[Matrix, ...]:
        """Returns the weights of a block's linear layers; queries, keys and values are one matrix."""
        width, hidden = spec.attention_width, spec.hidden_size
        in_feed_forward = 3 if architecture_of(spec.architecture).gated else 2
        return (
            Matrix(rows=width + 2 * spec.num_kv_heads * spec.head_dim, width=hidden),
            Matrix(rows=hidden, width=width),
            Matrix(rows=self.inner_width(spec), width=hidden, count=in_feed_forward),
        )

    def divided_sizes(self, spec: ModelSizes) -> tuple[tuple[int, str], ...]:
        """Returns (size, what it counts) of all in a block that tensor parallelism cuts."""
        return (
            (spec.num_heads, "heads"),
            (spec.num_kv_heads, "key/value heads"),
            (self.inner_width(spec), "columns of the feed-forward block"),
        )

    def linear_sizes(self, spec: ModelSizes) -> dict[str, int]:
        """Returns the sizes that the linear layers of a block have, by their names."""
        return {
            "hidden_size": spec.hidden_size,
            "width of all heads": spec.attention_width,
            "width of all key/value heads": spec.num_kv_heads * spec.head_dim,
            "ffn_size": self.inner_width(spec),
        }
