"""The builder asked: an odd value of a `config.json` is refused by the reader, or by transformers, in a sentence."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainers.models import build_check
from trainers.spec.architectures import architecture_of
from trainers.spec.model import ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "pad_token_id": None,
    "attention_bias": False,
}
GEMMA: dict[str, Any] = {
    **LLAMA,
    "model_type": "gemma3_text",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
    "final_logit_softcapping": 3.0,
}
ODD: tuple[Any, ...] = (
    "zz", 0, -1, 3, 10**25, float("inf"), float("nan"), True, None, ["x"], {}, {"type": "yarn"}
)  # fmt: skip


def odd_ones(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields `config` with one value replaced by each of the odd ones."""
    return ({**config, key: value} for key in config for value in ODD)


def test_an_odd_value_is_read_and_built_or_refused_in_a_sentence() -> None:
    refused_by_builder = 0
    for odd in odd_ones(LLAMA):
        try:
            spec = ModelSpec.from_config(odd, name="mine")
        except ValueError as error:
            assert str(error) and "\n" not in str(error)
            continue
        reason = build_check.reason_against(spec)
        assert "\n" not in reason and len(reason) < 300
        refused_by_builder += bool(reason)
    assert refused_by_builder > 5
    assert not build_check.reason_against(ModelSpec.from_config(LLAMA, name="mine"))


def reason(**stated: Any) -> str:
    """Returns the reason against LLAMA with these keys."""
    return build_check.reason_against(ModelSpec.from_config({**LLAMA, **stated}, name="mine"))


def test_a_reason_names_the_key() -> None:
    assert reason(hidden_act="zz") == "it does not know hidden_act 'zz'"
    assert reason(bos_token_id="x").startswith("Field 'bos_token_id' with value 'x' doesn't match any type")
    assert not reason(pad_token_id=97)
    assert not reason(num_hidden_layers=100, layer_types=["full_attention"] * 100)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_positions_that_depend_on_the_length_are_built(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks kinds whose code compares positions: dynamic in every version of transformers, longrope in 5.17, whose
    comparison is made here after the run.
    """
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32}
    scaling = {"rope_type": kind, "factor": 2.0} | (factors if kind == "longrope" else {})
    run = build_check._run  # pyright: ignore[reportPrivateUsage]

    def compared(built: Any) -> None:
        run(built)
        assert torch.zeros(1, device="meta") > 32

    if kind == "longrope":
        monkeypatch.setattr(build_check, "_run", compared)
    assert not reason(rope_scaling=scaling)


def test_another_count_of_a_block_is_told() -> None:
    spec = dataclasses.replace(ModelSpec.from_config(LLAMA, name="mine"), ffn_size=64)
    assert "mine has" in build_check.reason_against(spec)


def test_a_block_s_count_is_compared_apart_from_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a parameter more in a block is seen where there is one less outside."""
    spec = ModelSpec.from_config({**LLAMA, "num_hidden_layers": 1}, name="mine")
    family = type(architecture_of("llama"))
    per_layer, outside = spec.parameters_per_layer, spec.embedding_parameters
    monkeypatch.setattr(family, "parameters_per_layer", lambda *_: per_layer + 1)
    monkeypatch.setattr(family, "embedding_parameters", lambda *_: outside - 1)
    counts = f"has {per_layer} parameters, where {per_layer + 1} were counted"
    assert build_check.reason_against(spec) == f"its model.layers.0 {counts}"


def test_a_block_of_each_kind_is_built() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    config = {**GEMMA, "num_hidden_layers": 12, "layer_types": kinds * 2}
    few = build_check.with_few_blocks(ModelSpec.from_config(config, name="mine"))
    assert json.loads(few.config)["layer_types"] == ["sliding_attention", "full_attention"]
    assert (few.num_layers, json.loads(few.config)["num_hidden_layers"]) == (2, 2)
    spec = ModelSpec.from_config({**LLAMA, "num_hidden_layers": 90}, name="mine")
    assert build_check.with_few_blocks(spec).num_layers == 1
