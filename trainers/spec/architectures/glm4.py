"""GLM-4 of 2025: Llama with norms before and after attention and feed-forward block, partly rotated heads, one matrix
for gate and up, and biases of queries, keys and values.
"""

from trainers.spec.architectures.llama_like import ATTENTION_CUT, KEYS_WITH_ATTENTION_BIAS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="glm4",
    rotary_share=0.5,
    block_norms=4,
    output_bias=False,
    config_keys=KEYS_WITH_ATTENTION_BIAS,
    config_defaults={"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
    tensor_parallel={**ATTENTION_CUT, "mlp.gate_up_proj": "colwise", "mlp.down_proj": "rowwise"},
    stacked={"mlp.gate_up_proj": 2},
)
