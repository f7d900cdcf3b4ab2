"""StarCoder 2: Llama with LayerNorm, biases, two matrices in the feed-forward block, a tied table, and a window."""

from trainers.spec.architectures.llama_like import ATTENTION_CUT
from trainers.spec.architectures.windows import WindowInEveryBlock

ARCHITECTURE = WindowInEveryBlock(
    name="starcoder2",
    norm_vectors=2,
    bias=True,
    gated=False,
    tied=True,
    config_defaults={"num_key_value_heads": 2},
    counted_with={"use_bias": True},
    tensor_parallel={**ATTENTION_CUT, "mlp.c_fc": "colwise", "mlp.c_proj": "rowwise"},
)
