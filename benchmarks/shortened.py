"""A model with fewer blocks, for benchmarks whose subject does not depend on how many there are."""

import dataclasses
import json
from typing import Any

from trainers.spec.architectures import architecture_of
from trainers.spec.model import ModelSpec


def with_blocks(model: ModelSpec, num_layers: int) -> ModelSpec:
    """Returns `model` with `num_layers` blocks: the first ones, where its `config.json` says which have a window, else
    with the same share of them; all else that `config.json` states stays.

    Raises:
        ValueError: `config.json` lists the kinds of fewer blocks than `num_layers`.
    """
    if not model.config:
        window_layers = max(1, round(model.window_layers * num_layers / model.num_layers)) if model.window else 0
        return dataclasses.replace(model, num_layers=num_layers, window_layers=window_layers)
    family = architecture_of(model.architecture)
    config: dict[str, Any] = json.loads(model.config)
    preferred, *others = family.config_keys["num_layers"]
    config |= {key: num_layers for key in (preferred, *others) if key in config} or {preferred: num_layers}
    if isinstance(kinds := config.get("layer_types"), list):
        config["layer_types"] = kinds[:num_layers]
    window = family.window(config, num_layers)
    return dataclasses.replace(
        model,
        num_layers=num_layers,
        window=window.size,
        window_layers=window.num_layers,
        config=json.dumps(config, sort_keys=True),
    )
