"""Published configurations with a value damaged at random: refused in a sentence, or built as they were counted."""

import copy
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trainers.models import build_check
from trainers.spec.model import ModelSpec

_FILE = Path(__file__).parents[1] / "search_spaces" / "published.json"
CONFIGS: list[dict[str, Any]] = [
    entry["config"] for entry in json.loads(_FILE.read_text()).values() if "parameters" in entry
]
MISSING = object()
DAMAGES: tuple[Any, ...] = (
    MISSING, None, True, False, 0, 1, -1, 2, 3, 7, 96, 0.5, -0.0, 1e-300, 1e300, 10**9, 10**25, 10**400, float("inf"),
    float("nan"), "", "zz", "3", "\ud800", [], [1], ["full_attention"], [[1]], {}, {"type": "yarn"}, {"x": {"y": None}},
)  # fmt: skip
OF_INTEGERS: tuple[Any, ...] = (None, 0, -1, "x", 1.5, True, float("inf"))
"""Damages of a whole number; infinity is what Python reads of 1e400."""
_DEEPEST = 200
"""Blocks of a model that is built whole."""


def damaged(seed: int) -> Iterator[dict[str, Any]]:
    """Yields copies of published configurations, each with one or two values damaged at any depth."""
    generator = random.Random(seed)
    while True:
        config = copy.deepcopy(generator.choice(CONFIGS))
        for _ in range(generator.choice((1, 1, 2))):
            place = config
            while nested := [inner for inner in place.values() if isinstance(inner, dict) and inner]:
                if generator.random() < 0.5:
                    break
                place = generator.choice(nested)
            if not place:
                continue
            key = generator.choice(list(place))
            number = place[key] if type(place[key]) in (int, float) and abs(place[key]) < 1e12 else 1
            damage = generator.choice((*DAMAGES, -number, float(number), str(number), [number], number * 2 + 1))
            if damage is MISSING:
                del place[key]
            else:
                place[key] = damage
        yield config


def read(config: dict[str, Any]) -> ModelSpec | None:
    """Returns the model that is read; None where it is refused in a sentence."""
    try:
        return ModelSpec.from_config(config, name="mine")
    except ValueError as error:
        sentence = str(error)
        assert "mine" in sentence and "\n" not in sentence and len(sentence) < 600, sentence
        return None


def count_of_transformers(spec: ModelSpec) -> int:
    """Returns the parameters of the whole model, built without this project's code."""
    config = json.loads(spec.config)
    for key in ("auto_map", "pad_token_id"):
        config.pop(key, None)
    config["pad_token_id"] = None
    if config.get("head_dim", 0) is None:
        del config["head_dim"]
    kind = config.pop("model_type")
    if kind == "hunyuan_v1_dense":
        config.setdefault("head_dim", spec.head_dim)  # which its class does not compute
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**config))
    return sum(parameter.numel() for parameter in model.parameters())


def check_accepted(specs: list[ModelSpec]) -> None:
    """Checks that the builder refuses each in a sentence, or that transformers builds the whole as it was counted."""
    built = 0
    for spec in specs:
        reason = build_check.reason_against(spec)
        assert "\n" not in reason and len(reason) < 300, spec.config
        if not reason and spec.num_layers <= _DEEPEST:
            assert count_of_transformers(spec) == spec.num_parameters, spec.config
            built += 1
    assert built > len(specs) / 4


def test_a_damaged_configuration_is_read_or_refused_in_a_sentence() -> None:
    configs = [config for config, _ in zip(damaged(1), range(2000), strict=False)]
    specs = [spec for config in configs if (spec := read(config))]
    assert len(configs) / 5 < len(specs) < len(configs) * 4 / 5
    check_accepted(specs[:5])


@pytest.mark.heavy
def test_what_is_accepted_of_500_damaged_configurations_is_built_as_counted() -> None:
    check_accepted([spec for config, _ in zip(damaged(2), range(500), strict=False) if (spec := read(config))])


def integers_damaged() -> list[tuple[str, dict[str, Any]]]:
    """Returns, for every whole number of a family's first published configuration, its key and copies with it damaged,
    with and without `layer_types`.
    """
    families: dict[str, dict[str, Any]] = {}
    for config in CONFIGS:
        families.setdefault(config["model_type"], config)
    made: list[tuple[str, dict[str, Any]]] = []
    for config in families.values():
        for path in [*_integers(config), ("sliding_window",)]:
            for value, has_kinds in itertools.product(OF_INTEGERS, {True, "layer_types" not in config}):
                made.append((path[-1], copy.deepcopy(config)))
                place = made[-1][1]
                if not has_kinds:
                    place.pop("layer_types", None)
                for key in path[:-1]:
                    place = place[key]
                place[path[-1]] = value
    return made


def _integers(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        if type(value) is int:
            yield (*path, key)
        elif isinstance(value, dict):
            yield from _integers(value, (*path, key))


def check_named(damages: list[tuple[str, dict[str, Any]]]) -> None:
    """Checks that each is read and built, or that reader or builder names the damaged key."""
    for key, config in damages:
        if spec := read(config):
            reason = build_check.reason_against(spec)
            assert not reason or key in reason, (reason, key, config)


def test_a_damaged_integer_is_named() -> None:
    check_named(random.Random(3).sample(integers_damaged(), 100))


@pytest.mark.heavy
def test_every_damaged_integer_of_every_family_is_named() -> None:
    check_named(integers_damaged())
