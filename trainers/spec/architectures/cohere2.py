"""Command R7B and Command A: attention and feed-forward block in parallel behind one LayerNorm without biases, scaled
logits, and a window in three of four blocks; the fourth block has no rotary positions.
"""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS
from trainers.spec.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="cohere2",
    tied=True,
    block_norms=1,
    global_every=4,
    # transformers takes hidden_size / num_heads as the width of a head and ignores the file's head_dim.
    config_keys={
        **{field: keys for field, keys in KEYS_WITH_ATTENTION_BIAS.items() if field != "head_width"},
        "logit_scale": ("logit_scale",),
    },
    config_defaults={"logit_scale": 0.0625},
    trained_with={"use_parallel_block": True, "use_qk_norm": False, "use_gated_activation": True},
    logit_factor="logit_scale",
)
