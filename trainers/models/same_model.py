"""The mathematical differences between two models of one family, by their transformers configurations."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

from trainers.models.model import config_of
from trainers.spec.architectures import architecture_of
from trainers.spec.codec import shortened
from trainers.spec.model import ModelSpec

_LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
_WITHOUT_LENGTH = ("default", "linear", "llama3")
"""Kinds of rotary positions whose frequencies do not depend on `max_position_embeddings`."""
_UNUSED = (
    "initializer_range",  # only for weights that are drawn
    "pretraining_tp",  # only for BLOOM's slow_but_exact, which is refused
    "use_cache",
    # layer_types and no_rope_layers state the same in full.
    "_sliding_window_pattern",
    "max_window_layers",
    "no_rope_layer_interval",
)
"""Keys that do not change logits; any other difference is reported."""
_UNUSED_ENDS = ("_token_id", "dropout", "pdrop")
"""Endings of further such keys; dropout is always 0 here."""


def differences(first: ModelSpec, second: ModelSpec) -> list[tuple[str, Any, Any]]:
    """Returns each key of `config.json` that changes the mathematics and whose values differ, with both values. Keys
    that are left out have transformers' defaults.
    """
    values, others = _values(first), _values(second)
    return [
        (key, values.get(key), others.get(key))
        for key in dict.fromkeys((*values, *others))
        if values.get(key) != others.get(key)
    ]


def clause(difference: tuple[str, Any, Any]) -> str:
    """Returns a difference as a clause; the first value is the folder's, the second the recipe's."""
    key, first, second = difference
    return f"{key} is {shortened(first)} there and {shortened(second)} in the recipe"


def _values(spec: ModelSpec) -> dict[str, Any]:
    config = config_of(spec)
    declared = type(config)().to_dict()
    stated = config.to_dict()
    general = PreTrainedConfig().to_dict().keys()
    values = {
        key: stated.get(key)
        for key in declared
        if key not in general
        and key not in _UNUSED
        and not key.endswith(_UNUSED_ENDS)
        and not key.startswith("summary_")
    }
    for field, keys in architecture_of(spec.architecture).config_keys.items():
        if keys[0] not in _UNUSED:  # some are read although not declared; null means a derived size
            values[keys[0]] = spec.head_dim if field == "head_width" else getattr(spec, field)
    kinds = {value for key, value in _flat("", values) if key.endswith(".rope_type")}
    if kinds and kinds.issubset(_WITHOUT_LENGTH):
        values = {key: value for key, value in values.items() if key not in _LENGTHS}
    return {**dict(_flat("", values)), "embedding_norm": spec.embedding_norm}


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested objects by path."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)  # type: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{key}", value
