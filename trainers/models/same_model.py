"""The differences in mathematics of two models of one family, by the configurations that transformers makes of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

from trainers.models.model import config_of
from trainers.spec.architectures import architecture_of
from trainers.spec.codec import shortened
from trainers.spec.model import ModelSpec

_LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
_WITHOUT_LENGTH = ("default", "linear", "llama3")
"""Kinds of rotary positions whose frequencies do not follow from `max_position_embeddings`."""
_UNUSED = (
    "initializer_range",  # of weights that are drawn
    "pretraining_tp",  # of BLOOM's slow_but_exact, which is refused
    "use_cache",
    # What they say stands in full in layer_types and no_rope_layers.
    "_sliding_window_pattern",
    "max_window_layers",
    "no_rope_layer_interval",
)
"""Keys that change no logits: whatever else differs is told."""
_UNUSED_ENDS = ("_token_id", "dropout", "pdrop")
"""Ends of such keys; dropout is 0 here."""


def differences(first: ModelSpec, second: ModelSpec) -> list[tuple[str, Any, Any]]:
    """Returns the keys of `config.json` that change the mathematics, and the values that two models have there, where
    they differ. Keys that are left out have transformers' defaults.
    """
    values, others = _values(first), _values(second)
    return [
        (key, values.get(key), others.get(key))
        for key in dict.fromkeys((*values, *others))
        if values.get(key) != others.get(key)
    ]


def clause(difference: tuple[str, Any, Any]) -> str:
    """Returns a difference as a clause: the first value is the folder's, the second one the recipe's."""
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
        if keys[0] not in _UNUSED:  # some are read though they are not declared; a null stands for a size
            values[keys[0]] = spec.head_dim if field == "head_width" else getattr(spec, field)
    kinds = {value for key, value in _flat("", values) if key.endswith(".rope_type")}
    if kinds and kinds.issubset(_WITHOUT_LENGTH):
        values = {key: value for key, value in values.items() if key not in _LENGTHS}
    return {**dict(_flat("", values)), "embedding_norm": spec.embedding_norm}


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested objects by their paths."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)  # type: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{key}", value
