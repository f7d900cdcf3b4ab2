"""GPT-OSS: experts with biases and transposed weights in every block, a window in every second block, and attention
with sinks.
"""

import dataclasses
from collections.abc import Mapping

from trainers.spec.architectures.architecture import StepwiseActivation
from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS
from trainers.spec.architectures.windows import WindowByBlock
from trainers.spec.architectures.with_experts import WithExperts


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _GptOss(WithExperts, WindowByBlock):
    router: str = "mlp.router"
    expert_bias: bool = True
    attention_sinks: bool = True
    stored_in_parts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])


# transformers' clamped SwiGLU of interleaved gate and up values. Forward: the biases, two clamps, the gate's factor,
# sigmoid and product, the other half plus one, and the product of both. Backward: autograd's kernels of each; the two
# halves are padded with zeros and added. Saved: both halves, the clamped gate, its sigmoid, both factors and the
# output.
# Compiled: 3 and 5 if gate and up values did not alternate in memory, so that no load or write is of more than one
# value (docs/lab/kernels.csv#experts-traced.2).
_CLAMPED_SWIGLU = StepwiseActivation(
    forward_accesses=20.0, backward_accesses=40.0, saved_tensors=7.0, compiled_accesses=(6.4, 17.9)
)

ARCHITECTURE = _GptOss(
    name="gpt_oss",
    default_window=128,
    global_every=2,
    fp32_softmax=False,
    config_keys={
        **KEYS_WITH_ATTENTION_BIAS,
        "num_experts": ("num_local_experts", "num_experts"),
        "experts_per_token": ("num_experts_per_tok",),
    },
    stepwise_activation=_CLAMPED_SWIGLU,
    quantized_files=("mxfp4",),
    # transformers 5.17 has the constants of its clamped SwiGLU in its code.
    trained_with={"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "output_router_logits": False},
    config_defaults={
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "attention_bias": True,
    },
)
