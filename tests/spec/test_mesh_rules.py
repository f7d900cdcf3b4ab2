"""Tensor and context parallelism that is impossible is refused with the numbers, before anything starts."""

import dataclasses
from typing import Any

import pytest

from tests.contract.cases import recipe
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.support import standing_refusal

MODEL = ModelSpec(name="small", architecture="llama", num_layers=2, hidden_size=48, num_heads=6, vocab_size=96)
LAYOUT = Layout(engine="fsdp", zero_stage=3, attention="sdpa")


@pytest.mark.parametrize(
    ("model", "recipe_changes", "layout", "sentence"),
    [
        ({}, {}, {"tp": 2}, None),
        ({}, {}, {"cp": 2, "tp": 3, "compile": "block", "checkpointing": "selective"}, None),
        ({}, {}, {"tp": 4}, "tp 4 does not divide the 6 heads of small"),
        ({"num_kv_heads": 3}, {}, {"tp": 2}, "tp 2 does not divide the 3 key/value heads of small"),
        ({"ffn_size": 97}, {}, {"tp": 2}, "tp 2 does not divide the 97 columns of the feed-forward block of small"),
        ({"vocab_size": 97}, {}, {"tp": 2}, "tp 2 does not divide the 97 words in the vocabulary of small"),
        ({"hidden_size": 49, "head_width": 8}, {}, {"tp": 2}, "tp 2 does not divide the 49 values of a hidden state"),
        ({}, {"seq_len": 25}, {"tp": 2}, "tp 2 cuts the 25 tokens of a sequence"),
        ({}, {"seq_len": 20}, {"cp": 2, "tp": 3}, "tp 3 cuts the 10 tokens of a sequence"),
        ({}, {"seq_len": 26}, {"cp": 2}, "cp 2 cuts a sequence into 4 parts, which do not divide its 26 tokens"),
        ({}, {}, {"cp": 2, "attention": "eager"}, "eager attention looks at a rank's own keys alone, got cp 2"),
        ({}, {"optimizer": "adafactor"}, {"engine": "ddp", "zero_stage": 0, "tp": 2}, "Adafactor factors whole"),
        ({}, {"compression": "powersgd_4"}, {"engine": "ddp", "zero_stage": 0, "tp": 2}, "PowerSGD approximates"),
        ({}, {}, {"engine": "ddp", "zero_stage": 0, "tp": 2, "compile": "model"}, "a model compiled whole"),
        ({}, {}, {"dp_shard": 4, "tp": 2, "reshard": 2}, "in a row, got reshard 2 with tp 2: set"),
        ({}, {}, {"dp_shard": 4, "pp": 2, "reshard": 2}, "in a row, got reshard 2 with pp 2: set reshard to 0"),
        ({}, {}, {"pp": 2, "after_backward": "keep"}, "got after_backward keep with pp 2: choose free"),
        ({}, {}, {"engine": "deepspeed", "zero_stage": 1, "tp": 2}, "engines ddp and fsdp have it, got tp 2"),
        ({}, {}, {"engine": "deepspeed", "zero_stage": 1, "cp": 2}, "engines ddp and fsdp have it, got cp 2"),
    ],
)
def test_what_does_not_divide_or_combine_is_refused(
    model: dict[str, Any], recipe_changes: dict[str, Any], layout: dict[str, Any], sentence: str | None
) -> None:
    chosen = dataclasses.replace(recipe(dataclasses.replace(MODEL, **model)), **recipe_changes)
    requested = dataclasses.replace(LAYOUT, **layout)
    refusal = standing_refusal(chosen, requested, requested.world_size)
    assert refusal is None if sentence is None else refusal is not None and sentence in refusal


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "yarn"])
def test_positions_that_follow_the_length_are_not_cut(kind: str) -> None:
    """Checks that cp is refused where frequencies follow the longest position, of which ranks see unlike ones."""
    rope = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 48, "rope_theta": 1e4}
    config = {**MODEL.to_config(), "rope_parameters": rope}
    chosen = dataclasses.replace(recipe(ModelSpec.from_config(config, name="small")), seq_len=64)
    layout = dataclasses.replace(LAYOUT, cp=2)
    refusal = standing_refusal(chosen, layout, 2) or ""
    cut = f"rotary positions of kind {kind} follow the length, of which a rank sees its own part alone, got cp 2"
    assert refusal.startswith(cut) == (kind != "yarn")
    assert standing_refusal(dataclasses.replace(chosen, seq_len=48), layout, 2) is None
    assert standing_refusal(chosen, dataclasses.replace(LAYOUT, dp_shard=2), 2) is None


def test_norms_of_each_head_are_not_cut_among_ranks() -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 48, "num_heads": 6, "vocab_size": 96}
    model = ModelSpec(name="small", architecture="stablelm", head_norms=True, **sizes)
    assert standing_refusal(recipe(model), dataclasses.replace(LAYOUT, tp=2), 2) == (
        "small norms each head by a module of its own (qk_layernorm), got tp 2: choose tp 1"
    )
    without = recipe(dataclasses.replace(model, head_norms=False))
    assert standing_refusal(without, dataclasses.replace(LAYOUT, tp=2), 2) is None


LONG: dict[str, Any] = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("family", "stated", "longest"),
    [
        ("phi3", {"rope_scaling": {"type": "su", **LONG}, "original_max_position_embeddings": 48}, 48),
        ("phi3", {"rope_scaling": {"type": "yarn", **LONG, "factor": 4.0}}, 0),  # 4096 to transformers
        ("llama", {"rope_scaling": {"type": "longrope", **LONG, "original_max_position_embeddings": 48.0}}, 48),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 99}}, 64),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, 128),
    ],
)
def test_a_context_parallel_length_is_one_at_which_all_ranks_turn_alike(
    family: str, stated: dict[str, Any], longest: int
) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 97, "num_hidden_layers": 2}
    config = {**sizes, "model_type": family, "num_attention_heads": 4, "max_position_embeddings": 64, **stated}
    spec = ModelSpec.from_config(config, name="small")
    layout = dataclasses.replace(LAYOUT, cp=2)
    trained = [
        length
        for length in (16, 48, 64, 128)
        if not standing_refusal(dataclasses.replace(recipe(spec), seq_len=length), layout, 2)
    ]
    assert max(trained, default=0) == longest
