"""Mixture-of-experts blocks: a router chooses for each token some of many feed-forward networks of one width."""

from typing import ClassVar

from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.with_experts import WithExperts
from trainers.spec.blocks.kind import BlockKind, Matrix
from trainers.spec.model_sizes import ModelSizes


def _has_biases(spec: ModelSizes) -> bool:
    family = architecture_of(spec.architecture)
    return isinstance(family, WithExperts) and family.expert_bias


def _matrices(spec: ModelSizes) -> int:
    """Returns the number of parameters of one expert's matrices: gate, up and down."""
    return 3 * spec.hidden_size * spec.ffn_size


def _expert(spec: ModelSizes) -> int:
    return _matrices(spec) + (2 * spec.ffn_size + spec.hidden_size if _has_biases(spec) else 0)


def _shared(spec: ModelSizes) -> int:
    """Returns the number of parameters of the shared expert and of its gate."""
    return 3 * spec.hidden_size * spec.shared_ffn_size + (spec.hidden_size if spec.shared_ffn_size else 0)


class Experts(BlockKind):
    """Blocks with experts and without a sliding window."""

    name = "experts"
    costs = "experts"
    sizes: ClassVar = {
        **BlockKind.sizes,
        "num_experts": lambda spec: spec.num_experts,
        "experts_per_token": lambda spec: spec.experts_per_token,
        "expert_parameters": lambda spec: spec.num_experts * _expert(spec),
        "shared_ffn": lambda spec: spec.shared_ffn_size,
        "normed_heads": lambda spec: architecture_of(spec.architecture).query_key_norm != "none",
        "fullest": lambda _: 1.0,
        "counted_ahead": lambda _: 0.0,
    }

    def count(self, spec: ModelSizes) -> int:
        return spec.num_layers - spec.window_layers if spec.num_experts else 0

    def parameters(self, spec: ModelSizes) -> int:
        router = self._router(spec).values + (spec.num_experts if _has_biases(spec) else 0)
        experts = spec.num_experts * _expert(spec) + _shared(spec)
        return super().parameters(spec) - _matrices(spec) + experts + router

    def active_parameters(self, spec: ModelSizes) -> int:
        return self.parameters(spec) - (spec.num_experts - spec.experts_per_token) * _expert(spec)

    def product_parameters(self, spec: ModelSizes) -> int:
        others = (spec.experts_per_token - 1) * _matrices(spec) + _shared(spec)
        return super().product_parameters(spec) + others + self._router(spec).values

    def last_product(self, spec: ModelSizes) -> int:
        """Returns 0: the backward pass needs the experts' outputs for the router's gradient."""
        return 0

    def saved_weights(self, spec: ModelSizes) -> int:
        """Returns 0: experts are not computed in FP8."""
        return 0

    def inner_width(self, spec: ModelSizes) -> int:
        """Returns the summed width of the experts that a token uses."""
        return spec.experts_per_token * spec.ffn_size + spec.shared_ffn_size

    def matrices(self, spec: ModelSizes) -> tuple[Matrix, ...]:
        """Returns the weights of attention, the router, the shared expert and its gate.

        Other experts are left out, because they are stacks of matrices and not linear layers.
        """
        queries, output, _ = super().matrices(spec)
        hidden, shared = spec.hidden_size, spec.shared_ffn_size
        of_all = (Matrix(rows=shared, width=hidden, count=3), Matrix(rows=1, width=hidden)) if shared else ()
        return (queries, output, self._router(spec), *of_all)

    def divided_sizes(self, spec: ModelSizes) -> tuple[tuple[int, str], ...]:
        """Returns attention's sizes only; tensor parallelism does not cut experts."""
        return ((spec.num_heads, "heads"), (spec.num_kv_heads, "key/value heads"))

    def linear_sizes(self, spec: ModelSizes) -> dict[str, int]:
        """Returns the sizes of attention and the router."""
        sizes = {name: size for name, size in super().linear_sizes(spec).items() if name != "ffn_size"}
        return {**sizes, "num_experts": spec.num_experts}

    def _router(self, spec: ModelSizes) -> Matrix:
        return Matrix(rows=spec.num_experts, width=spec.hidden_size)


KIND = Experts()
