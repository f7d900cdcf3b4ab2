"""Models of one name that are not the same are told apart by their keys."""

import dataclasses

from platform.study.model_difference import model_difference, nearest_difference
from search_spaces.llama3 import LLAMA3_8B
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

OF_SIZES = ModelSpec(
    name="llama3-8b",
    architecture="llama",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    ffn_size=14_336,
    vocab_size=128_256,
    max_positions=131_072,
)
"""The model as it was before it had its published configuration."""


def test_the_keys_that_differ_are_named_numbers_first() -> None:
    assert model_difference(OF_SIZES, LLAMA3_8B) == (
        "max_position_embeddings 131072 (here 8192), rms_norm_eps left out (here 1e-05), rope_theta left out (here"
        " 500000.0) and 2 more"
    )
    assert model_difference(LLAMA3_8B, LLAMA3_8B) == ""


def test_models_of_other_names_have_no_difference_in_keys() -> None:
    old = Recipe(model=OF_SIZES, seq_len=8192, global_batch=128)
    assert "rope_theta" in nearest_difference(old, (dataclasses.replace(old, model=LLAMA3_8B),))
    renamed = dataclasses.replace(old, model=dataclasses.replace(LLAMA3_8B, name="other"))
    assert nearest_difference(old, (renamed,)) == ""
