"""Built-in models are the published ones: what transformers makes of each has the keys of its config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from trainers.models.model import config_of

PUBLISHED = json.loads((Path(__file__).parent / "built_in.json").read_text())
MODELS = {recipe.model.name: recipe.model for space in search_spaces.built_in_spaces() for recipe in space.recipes}
WITHOUT_A_FILE = {"tr3m-1B3"}
"""Models that were published in papers or scripts alone."""


def test_every_built_in_model_has_a_published_file() -> None:
    assert set(MODELS) - WITHOUT_A_FILE - set(PUBLISHED) == {"gpt2-xxl"}, "of GPT-2 XL's blocks, and no other file"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_built_in_model_has_the_published_keys(name: str) -> None:
    built: Any = config_of(MODELS[name])
    defaults = {"n_inner": 4 * built.hidden_size, "head_dim": built.hidden_size // built.num_attention_heads}
    for key, value in PUBLISHED[name]["keys"].items():
        stated = getattr(built, key, None)
        assert (defaults[key] if stated is None and key in defaults else stated) == value, key
