"""Checks values of a `config.json` that mean the same in every family: numbers, switches, unsupported features."""

import math
from collections.abc import Mapping
from typing import Any

from trainers.spec.codec import shortened

_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
_SWITCHES = (
    "add_cross_attention",
    "apply_residual_connection_post_layernorm",
    "attention_bias",
    "attention_out_bias",
    "mlp_bias",
    "qk_layernorm",
    "reorder_and_upcast_attn",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "slow_but_exact",
    "use_bias",
    "use_bidirectional_attention",
    "use_parallel_residual",
    "use_qkv_bias",
    "use_sliding_window",
)
_LANGUAGE_MODELS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Endings of names of transformers' classes that predict the next token."""
_REFUSED = {
    "quantization_config": "its weights are stored as {0}, and this project trains a model of its own precision: take"
    " the folder of the model before quantization",
    "compression_config": "its weights are stored as {0}, and this project trains a model of its own precision: take"
    " the folder of the model before compression",
    "dual_chunk_attention_config": "attention over chunks is not trained here: take the key out to train with attention"
    " over all tokens",
}
"""Keys that ask for mathematics that transformers' class of the family lacks, with the reason of the refusal."""


def check_values(config: Mapping[str, Any], name: str) -> None:
    """Checks the values of `config` that all families read in the same way.

    Raises:
        ValueError: a value has no meaning, or asks for a feature that this project does not train.
    """
    _check_finite(config, name)
    _check_honoured(config, name)
    for key in _EPSILONS:
        value = config.get(key)
        if value is not None and (type(value) not in (int, float) or value < 0):
            raise ValueError(f"{key} of {name} must be a number of at least 0, got {shortened(value)}")
    for key, value in config.items():
        # Training here has no dropout, but other tools cannot build the model of a file with a wrong value.
        if key.endswith(("dropout", "pdrop")) and (type(value) not in (int, float) or not 0 <= value <= 1):
            raise ValueError(f"{key} of {name} must lie in [0, 1] or be left out, got {shortened(value)}")
    for key in _SWITCHES:
        if config.get(key) is not None and type(config[key]) is not bool:
            raise ValueError(f"{key} of {name} must be true, false or left out, got {shortened(config[key])}")


def _check_finite(config: Mapping[str, Any], name: str) -> None:
    """Refuses NaN and Infinity at any depth, because they are not JSON. Uses a stack, as JSON may be nested deeper than
    Python recurses.
    """
    waiting: list[tuple[str, Any]] = list(config.items())
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} of {name} must be a finite number, got {value}")
        if isinstance(value, Mapping):
            waiting += [(f"{key}.{inner_key}", inner) for inner_key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(key, inner) for inner in value]  # type: ignore[reportUnknownVariableType]


def _check_honoured(config: Mapping[str, Any], name: str) -> None:
    for key, reason in _REFUSED.items():
        if value := config.get(key):
            method = value.get("quant_method") if isinstance(value, Mapping) else None
            raise ValueError(f"{key} of {name} is stated: {reason.format(method or 'other numbers')}")
    listed = config.get("architectures")
    for kind in listed if isinstance(listed, list) else ():  # type: ignore[reportUnknownVariableType]
        if isinstance(kind, str) and "For" in kind and not kind.endswith(_LANGUAGE_MODELS):
            raise ValueError(
                f"architectures of {name} names {shortened(kind)}: this project trains models that predict the next"
                " token, take a ...ForCausalLM"
            )
    if config.get("slow_but_exact") and config.get("pretraining_tp", 1) != 1:
        raise ValueError(
            f"slow_but_exact of {name} with a pretraining_tp of {shortened(config['pretraining_tp'])} multiplies by"
            " parts of the weights, which is not trained here: set slow_but_exact to false"
        )
