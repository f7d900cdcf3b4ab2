"""Phi-3 and Phi-4: Llama with one matrix for queries, keys and values, one for gate and up, and an optional window."""

from trainers.spec.architectures.windows import WindowInEveryBlock

ARCHITECTURE = WindowInEveryBlock(
    name="phi3",
    rotary_share=1.0,
    tensor_parallel={
        "self_attn.qkv_proj": "colwise",
        "self_attn.o_proj": "rowwise",
        "mlp.gate_up_proj": "colwise",
        "mlp.down_proj": "rowwise",
    },
    tensor_parallel_refusal="phi3 cuts queries, keys and values out of one product by the sizes of the whole model",
)
