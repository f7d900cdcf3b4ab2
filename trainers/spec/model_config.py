"""Reads what a transformers `config.json` states of a model, and checks it, for `ModelSpec.from_config`."""

from collections.abc import Mapping
from typing import Any

from trainers.spec import architectures
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.architecture import Architecture
from trainers.spec.codec import shortened

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of `config.json` with which models state a mixture of experts."""
_NEEDED = ("num_layers", "hidden_size", "num_heads", "vocab_size")
_INTEGERS = (*_NEEDED, "ffn_size", "num_kv_heads", "head_width", "max_positions")


def text_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the language model's configuration from one with images, where its family is known by itself."""
    inner, kind = config.get("text_config"), config.get("model_type")
    if isinstance(inner, Mapping) and f"{kind}_text" in architectures.names():
        return {"model_type": f"{kind}_text", **inner}
    return config


def family_of(config: Mapping[str, Any], name: str) -> Architecture:
    """Returns the architecture of `config`.

    Raises:
        ValueError: one that this project does not train.
    """
    for key in _EXPERTS:
        if config.get(key):
            raise ValueError(
                f"{key} of {name} is {shortened(config[key])}: this project trains no mixtures of experts,"
                " take a model without them"
            )
    kind = config.get("model_type")
    if kind not in architectures.names():
        family_names = ", ".join(architectures.names())
        lacks = f"{name} states no model_type" if kind is None else f"model_type {kind!r} of {name} is not known"
        raise ValueError(f"{lacks}: this project trains {family_names}")
    return architecture_of(kind)


def fields_of(config: Mapping[str, Any], family: Architecture, name: str) -> dict[str, Any]:
    """Returns the fields of a `ModelSpec` that `config` states, its window among them.

    Raises:
        ValueError: a needed size is missing, a value is of another type, or a window cannot be trained.
    """
    keys = family.config_keys
    complete = {**family.config_defaults, **config}
    values: dict[str, Any] = {}
    for field, spellings in keys.items():
        value = next((complete[key] for key in spellings if complete.get(key) is not None), None)
        if value is not None:
            values[field] = value
    missing = [f"{field} ({' or '.join(keys[field])})" for field in _NEEDED if field not in values]
    if missing:
        raise ValueError(f"the configuration of {name} lacks {', '.join(missing)}")
    _check_types(values, keys, name)
    try:
        window = family.window(config, values["num_layers"])
    except ValueError as error:
        raise ValueError(f"the configuration of {name} cannot be trained: {error}") from None
    return {**values, "window": window.size, "window_layers": window.num_layers}


def _check_types(values: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]], name: str) -> None:
    wrong = [field for field, value in values.items() if field in _INTEGERS and type(value) is not int]
    if wrong:
        raise ValueError(f"the configuration of {name} wants whole numbers for {', '.join(wrong)}")
    if type(values.get("init_std", 0.0)) not in (int, float):
        raise ValueError(f"the configuration of {name} wants a number for init_std, got {values['init_std']!r}")
    if type(values.get("tied_embeddings", False)) is not bool:
        raise ValueError(f"the configuration of {name} wants true or false for tied_embeddings")
    if type(values.get("logit_softcap", 0.0)) not in (int, float):
        raise ValueError(f"the configuration of {name} wants a number for {keys['logit_softcap'][0]}")


def check_rest(config: Mapping[str, Any], family: Architecture, name: str, *, head_dim: int) -> None:
    """Checks what has no field: that `config` asks for nothing that is not trained or not counted.

    Raises:
        ValueError: it does.
    """
    kind = family.name
    for field, trained in family.trained_with.items():
        if config.get(field, trained) not in (None, trained):
            raise ValueError(
                f"{field} of {name} must be {'null' if trained is None else str(trained).lower()} or left out, got"
                f" {config[field]}: this project trains a {kind} without it only"
            )
    for field, expected in {**family.counted_with, "head_dim": head_dim}.items():
        if config.get(field, expected) not in (None, expected):
            raise ValueError(
                f"{field} of {name} must be {expected} or left out, got {config[field]}: this project counts the"
                f" parameters of a {kind} with {expected} only"
            )
