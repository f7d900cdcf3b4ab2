"""StableLM: Llama with LayerNorm and partly rotated heads; optional biases of queries, keys and values, norms of each
head, and one norm for attention and feed-forward block.
"""

from trainers.spec.architectures.llama_like import KEYS, LlamaLike

ARCHITECTURE = LlamaLike(
    name="stablelm",
    rotary_share=0.25,
    norm_vectors=2,
    output_bias=False,
    config_keys={
        **{field: keys for field, keys in KEYS.items() if field != "head_width"},
        "attention_bias": ("use_qkv_bias",),
        "head_norms": ("qk_layernorm",),
        "parallel_residual": ("use_parallel_residual",),
    },
    config_defaults={"num_key_value_heads": 32},
    head_sizes=("num_heads", "num_key_value_heads"),
)
