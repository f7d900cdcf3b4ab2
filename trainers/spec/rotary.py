"""Rotary positions as a `config.json` states them: their kind, and the sequence length that they are made for."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainers.spec.codec import shortened

_ORIGINAL = "original_max_position_embeddings"
_PLACES = ("rope_parameters", "rope_scaling")
"""Keys under which transformers reads them, the present key first, then the older key."""
_WITH_FACTOR = ("linear", "dynamic", "yarn", "llama3")
_KINDS = ("default", *_WITH_FACTOR, "longrope")
_STRETCHED = ("dynamic", "yarn")
"""Kinds that reach `factor` times the original length."""
_BY_LENGTH = ("dynamic", "longrope")
_ABOVE_ZERO = (
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    _ORIGINAL,
    "rope_theta",
)
_SHARES = ("partial_rotary_factor", "rotary_pct")


def check(config: Mapping[str, Any], name: str) -> None:
    """Checks the values of `config` on rotary positions.

    Raises:
        ValueError: a value has no meaning.
    """
    for key in ("rope_theta", "rope_local_base_freq", "rotary_emb_base", _ORIGINAL):
        _check_above_zero(config, key, f"{key} of {name}")
    for key in _SHARES:
        _check_share(config, key, f"{key} of {name}")
    for place in _PLACES:
        if config.get(place) is not None and not isinstance(config[place], Mapping):
            raise ValueError(f"{place} of {name} must be an object or null, got {shortened(config[place])}")
    for place, parameters in _stated(config):
        for key in _ABOVE_ZERO:
            _check_above_zero(parameters, key, f"{key} in {place} of {name}")
        _check_share(parameters, _SHARES[0], f"{_SHARES[0]} in {place} of {name}")
        kind = _kind(parameters, config)
        if kind not in _KINDS:
            key = "rope_type" if "rope_type" in parameters else "type"
            raise ValueError(f"{key} in {place} of {name} must be one of {', '.join(_KINDS)}, got {shortened(kind)}")
        if kind in _WITH_FACTOR and parameters.get("factor") is None:
            raise ValueError(
                f"{place} of {name} is of type {kind} and states no factor: state one, or take {place} out"
            )


def check_width(config: Mapping[str, Any], name: str, *, head_dim: int, share: float | None) -> None:
    """Checks the part of a head that rotary positions turn: `share` of its `head_dim` values, or a share in `config`.

    `share` None means that the family turns whole heads only.

    Raises:
        ValueError: the family turns whole heads only and `config` states a share, or the part is not made of pairs of
            values.
    """
    stated = [(key, place.get(key)) for place in (*(inner for _, inner in _stated(config)), config) for key in _SHARES]
    key, value = next(((key, value) for key, value in stated if value is not None), ("head_dim", share or 1.0))
    if share is None and value != 1:
        raise ValueError(
            f"{key} of {name} must be 1 or left out, got {shortened(value)}: transformers turns whole heads of a"
            f" {config.get('model_type')}"
        )
    width = int(head_dim * value)
    if width % 2 or not width:
        by_key = "" if value == 1 else f" by {key}"
        raise ValueError(
            f"heads of {name} are {head_dim} wide (head_dim, or hidden_size by the number of heads), and rotary"
            f" positions turn pairs of {width} of these values: choose an even width{by_key}"
        )


def kind_by_length(config: Mapping[str, Any]) -> str:
    """Returns the kind of rotary positions if its frequencies depend on the sequence length, else an empty text."""
    return next((kind for _, stated in _stated(config) if (kind := _kind(stated, config)) in _BY_LENGTH), "")


def original_length(config: Mapping[str, Any]) -> int:
    """Returns a length up to which `kind_by_length` gives the same frequencies for all sequences; 0 if none is known.

    transformers reads one of several keys, so the smallest of their values is taken.
    """
    lengths = [stated.get(_ORIGINAL) for stated in (config, *(parameters for _, parameters in _stated(config)))]
    if kind_by_length(config) == "dynamic":
        lengths.append(config.get("max_position_embeddings"))
    return int(min((length for length in lengths if length), default=0))


def made_for(config: Mapping[str, Any], max_positions: int) -> int:
    """Returns the sequence length that the positions are made for: `max_positions`, or more if a factor stretches them;
    0 if unknown.
    """
    longest = float(max_positions)
    for _, stated in _stated(config):
        if _kind(stated, config) in _STRETCHED and max_positions:
            before = stated.get(_ORIGINAL) or max_positions
            longest = max(longest, before * (stated.get("factor") or 1))
    return int(longest)


def _stated(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each set of parameters with its key; a model may state one set for each kind of block."""
    for place in _PLACES:
        stated = config.get(place)
        if isinstance(stated, Mapping):
            yield place, stated
            yield from ((place, inner) for inner in stated.values() if isinstance(inner, Mapping))


def _kind(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    # The first Phi-3 models use other names for it, which transformers reads as "longrope".
    return "longrope" if config.get("model_type") == "phi3" and kind in ("su", "yarn") else kind


def _check_above_zero(values: Mapping[str, Any], key: str, subject: str) -> None:
    value = values.get(key)
    if value is not None and (type(value) not in (int, float) or not value > 0):
        raise ValueError(f"{subject} must be a number above 0 or left out, got {shortened(value)}")


def _check_share(values: Mapping[str, Any], key: str, subject: str) -> None:
    value = values.get(key)
    if value is not None and (type(value) not in (int, float) or not 0 < value <= 1):
        raise ValueError(f"{subject} must lie above 0 and be at most 1, got {shortened(value)}")
