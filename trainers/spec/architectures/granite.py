"""Granite 3: Llama whose embeddings, scores, residuals and logits are scaled by constants of its configuration."""

from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, LlamaLike
from trainers.spec.model_sizes import MULTIPLIERS

ARCHITECTURE = LlamaLike(
    name="granite",
    config_keys={
        **KEYS_WITH_ATTENTION_BIAS,
        "mlp_bias": ("mlp_bias",),
        **{field: (field,) for field in MULTIPLIERS if field != "logit_scale"},
    },
    embedding_factor="model.embedding_multiplier",
    logit_factor="config.logits_scaling",
)
