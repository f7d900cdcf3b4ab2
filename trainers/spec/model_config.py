"""Reads and checks the facts that a transformers `config.json` states of a model, for `ModelSpec.from_config`."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.spec import architectures, rotary
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.architecture import Architecture
from trainers.spec.codec import shortened
from trainers.spec.config_values import check_values
from trainers.spec.model_sizes import MULTIPLIERS, SWITCHES

LARGEST_DEPTH = 10**5
"""Largest number of blocks in a `config.json`; memory grows with it, because a list of blocks is made."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of `config.json` that state a mixture of experts."""
_BESIDE_EXPERTS = {
    "full_attention_interval": "linear attention",
    "kv_lora_rank": "keys and values made of a shorter vector",
    "shared_expert_intermediate_size": "an expert that every token passes",
    "n_shared_experts": "experts that every token passes",
}
"""Keys of `config.json` for features that some models with experts have and that this project does not train beside
experts.
"""
_LANGUAGE_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys under which a model with images or sound holds its language model's configuration."""
_STORED = "quantization_config"
_NEEDED = ("num_layers", "hidden_size", "num_heads", "vocab_size")
_INTEGERS = (
    *_NEEDED,
    "ffn_size",
    "num_kv_heads",
    "head_width",
    "max_positions",
    "num_experts",
    "experts_per_token",
    "shared_ffn_size",
)
_SWITCHES = ("tied_embeddings", *SWITCHES)
_ABOVE_ZERO = ("init_std", *MULTIPLIERS)


def text_model(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns the innermost language model's configuration in a model with images or sound, or `config` if it has no
    such part.

    Raises:
        ValueError: the outer configuration asks for a feature that this project does not train.
    """
    while (kind := config.get("model_type")) not in architectures.names():
        part = next((key for key in _LANGUAGE_PARTS if isinstance(config.get(key), Mapping)), None)
        if part is None:
            break
        inner: Mapping[str, Any] = config[part]
        text_kind = inner.get("model_type") or f"{kind}_text"
        if "model_type" not in inner and text_kind not in architectures.names():
            break
        check_values({key: value for key, value in config.items() if key != part}, name)
        # The outer model owns the head, so its tie_word_embeddings counts unless the inner part states its own.
        tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        config = {"model_type": text_kind, **tied, **inner}
    return config


def trained_in(config: Mapping[str, Any], family: Architecture) -> Mapping[str, Any]:
    """Returns `config` without the storage format of published weights (`quantization_config`), if the family can be
    planned without it.
    """
    return {key: value for key, value in config.items() if key != _STORED or not _is_planned(config, family)}


def stored_as(config: Mapping[str, Any]) -> str:
    """Returns the `quant_method` of the published weights beside `config`; empty if it states none."""
    stored = config.get(_STORED)
    return str(stored.get("quant_method") or "other numbers") if isinstance(stored, Mapping) else ""


def _is_planned(config: Mapping[str, Any], family: Architecture) -> bool:
    return stored_as(config) in family.quantized_files


def remarks_on(config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Returns a sentence on each part of `config`, as read from a file, that training leaves out."""
    text = text_model(config, name)
    kind, sentences = text.get("model_type"), list[str]()
    if text is not config:
        sentences.append(
            f"{name} is trained without its images: of {config.get('model_type')}, its language model, a {kind}"
        )
    if config.get("auto_map") or text.get("auto_map"):
        sentences.append(f"auto_map of {name} names code, which never runs: transformers' own {kind} is built")
    if stored_as(text):
        sentences.append(
            f"the published weights of {name} are stored as {stored_as(text)}: it is planned and trained in the"
            " recipe's types, from weights of its own"
        )
    return tuple(sentences)


def family_of(config: Mapping[str, Any], name: str) -> Architecture:
    """Returns the architecture of `config`.

    Raises:
        ValueError: this project does not train that architecture.
    """
    kind = config.get("model_type")
    if kind not in (with_experts := _with_experts()):
        _refuse_experts(config, name, with_experts)
    if kind not in architectures.names():
        family_names = ", ".join(architectures.names())
        lacks = f"{name} states no model_type"
        if kind is not None:
            lacks = f"model_type {shortened(kind)} of {name} is not known{_odd_blocks(config)}"
        raise ValueError(f"{lacks}: this project trains {family_names}")
    return architecture_of(kind)


def _refuse_experts(config: Mapping[str, Any], name: str, with_experts: Sequence[str]) -> None:
    experts = next((key for key in _EXPERTS if config.get(key)), None)
    if experts is None:
        return
    key = next((key for key in _BESIDE_EXPERTS if config.get(key)), experts)
    beside = f"no {_BESIDE_EXPERTS[key]} beside experts, and " if key in _BESIDE_EXPERTS else ""
    raise ValueError(
        f"{key} of {name} is {shortened(config[key])}: this project trains {beside}experts in models of"
        f" {', '.join(with_experts)} only, take one of these or a model without experts"
    )


@functools.cache
def _with_experts() -> tuple[str, ...]:
    return tuple(name for name in architectures.names() if "num_experts" in architecture_of(name).config_keys)


def _odd_blocks(config: Mapping[str, Any]) -> str:
    """Returns a clause with the first kind in `layer_types` that no family here has; empty if there is none."""
    kinds = config.get("layer_types")
    listed: list[Any] = kinds if isinstance(kinds, list) else []
    odd = next((kind for kind in listed if kind not in ("full_attention", "sliding_attention")), None)
    return f", and its layer_types name {shortened(odd)}" if odd else ""


def fields_of(config: Mapping[str, Any], family: Architecture, name: str) -> dict[str, Any]:
    """Returns the fields of a `ModelSpec` that `config` states, including its sliding window.

    Raises:
        ValueError: a needed size is missing, a value has the wrong type, or the window cannot be trained.
    """
    check_values(config, name)
    rotary.check(config, name)
    keys = family.config_keys
    defaults = {key: value for key, value in family.config_defaults.items() if key not in config}
    values: dict[str, Any] = {}
    for field, spellings in keys.items():
        stated = (source[key] for source in (config, defaults) for key in spellings if source.get(key) is not None)
        if (value := next(stated, None)) is not None:
            values[field] = value
    needed = (*_NEEDED, *(() if _has_usual_ffn(family) else ("ffn_size",)))
    missing = [f"{field} ({' or '.join(keys[field])})" for field in needed if field not in values]
    if missing:
        raise ValueError(f"the configuration of {name} lacks {', '.join(missing)}")
    _check_types(values, keys, name)
    if values["num_layers"] > LARGEST_DEPTH:
        key = next(key for key in keys["num_layers"] if config.get(key) is not None)
        raise ValueError(f"{key} of {name} must be at most {LARGEST_DEPTH:,}, got {shortened(values['num_layers'])}")
    try:
        window = family.window(config, values["num_layers"])
    except ValueError as error:
        raise ValueError(f"the configuration of {name} cannot be trained: {error}") from None
    return {**values, "window": window.size, "window_layers": window.num_layers}


def _has_usual_ffn(family: Architecture) -> bool:
    """Returns whether a feed-forward block whose width is not stated has 4 x hidden_size."""
    (key, *_) = family.config_keys.get("ffn_size", ("",))
    return not key or family.config_defaults.get(key, 0) is None


def _check_types(values: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]], name: str) -> None:
    for field, value in values.items():
        spelled = f"{field} ({' or '.join(keys[field])})"
        if field in _INTEGERS and type(value) is not int:
            kind = "a whole number"
        elif field in _INTEGERS and value < 1:
            kind = "at least 1"
        elif field in _SWITCHES and type(value) is not bool:
            kind = "true or false"
        elif field in (*_ABOVE_ZERO, "logit_softcap") and type(value) not in (int, float):
            kind = "a number"
        elif field in _ABOVE_ZERO and not value > 0:
            kind = "a number above 0"
        else:
            continue
        raise ValueError(f"the configuration of {name} needs {kind} for {spelled}, got {shortened(value)}")


def check_rest(config: Mapping[str, Any], family: Architecture, name: str, *, head_dim: int) -> None:
    """Checks keys that have no `ModelSpec` field.

    Raises:
        ValueError: `config` asks for a feature that is not trained or for parameters that are not counted.
    """
    kind = family.name
    for field, trained in family.trained_with.items():
        if config.get(field, trained) not in (None, trained):
            raise ValueError(
                f"{field} of {name} must be {'null' if trained is None else str(trained).lower()} or left out, got"
                f" {shortened(config[field])}: this project trains a {kind} without it only"
            )
    for field, expected in {**family.counted_with, "head_dim": head_dim}.items():
        if config.get(field, expected) not in (None, expected):
            raise ValueError(
                f"{field} of {name} must be {expected} or left out, got {shortened(config[field])}: this project counts"
                f" the parameters of a {kind} with {expected} only"
            )
    if family.position == "rotary":
        rotary.check_width(config, name, head_dim=head_dim, share=family.rotary_share)
