"""Lists the `config.json` keys in which two models differ."""

from typing import Any

from trainers.spec.codec import shortened
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

_MOST_LISTED = 3
_WITHOUT_EFFECT = ("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
"""Configuration keys that do not affect a training."""


def model_difference(recorded: ModelSpec, present: ModelSpec) -> str:
    """Returns the differing keys with both values, such as "rope_theta left out (here 500000.0)"; "" for equal models.

    Keys that both models state come first, and numbers before switches and names.
    """
    old, new = _config(recorded), _config(present)
    differing = [key for key in {**old, **new} if key not in _WITHOUT_EFFECT and old.get(key) != new.get(key)]

    def rank(key: str) -> tuple[bool, bool]:
        value = new.get(key, old.get(key))
        return not (key in old and key in new), isinstance(value, bool | str)

    differing.sort(key=rank)
    more = len(differing) - _MOST_LISTED
    listed = ", ".join(
        f"{key} {_value_text(old, key)} (here {_value_text(new, key)})" for key in differing[:_MOST_LISTED]
    )
    return f"{listed} and {more} more" if more > 0 else listed


def nearest_difference(recorded: Recipe, present: tuple[Recipe, ...]) -> str:
    """Returns how the model of `recorded` differs from the model of that name in `present`; "" without a difference."""
    models = (recipe.model for recipe in present if recipe.has_model and recipe.name == recorded.name)
    return next((difference for model in models if (difference := model_difference(recorded.model, model))), "")


def _config(model: ModelSpec) -> dict[str, Any]:
    return model.settings or model.to_config()


def _value_text(config: dict[str, Any], key: str) -> str:
    return shortened(config[key]) if key in config else "left out"
