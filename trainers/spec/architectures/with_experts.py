"""Families with a mixture of experts: a router chooses some of a block's feed-forward networks for each token."""

import dataclasses
from collections.abc import Mapping

from trainers.spec.architectures.architecture import Cutting
from trainers.spec.architectures.llama_like import ATTENTION_CUT, LlamaLike

_EXPERT = "mlp.experts.{expert}."
STORED_EXPERTS: Mapping[str, tuple[str, ...]] = {
    "mlp.experts.gate_up_proj": (f"{_EXPERT}gate_proj.weight", f"{_EXPERT}up_proj.weight"),
    "mlp.experts.down_proj": (f"{_EXPERT}down_proj.weight",),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WithExperts(LlamaLike):
    """A family in which every block has experts of one width (`ModelSizes.ffn_size`) and optionally a shared expert of
    another width (`ModelSizes.shared_ffn_size`). The router's softmax over all experts is computed in fp32.
    """

    router: str = "mlp.gate"
    """Path of the router in a block."""
    experts: str = "mlp.experts"
    """Path in a block of the module whose parameters have the experts as first dimension."""
    expert_bias: bool = False
    """Whether the router and both products of an expert have biases."""
    stored_in_parts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: STORED_EXPERTS)
    tensor_parallel: Mapping[str, Cutting] = dataclasses.field(default_factory=lambda: ATTENTION_CUT)
    tensor_parallel_refusal: str = "tensor parallelism cuts linear layers, and experts are none"
    float8_refusal: str = "FP8 is for linear layers, and experts are none"
