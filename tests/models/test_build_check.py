"""The builder asked: an odd value of a `config.json` is refused by the reader, or by transformers, in a sentence."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.models.test_damaged_configs import CONFIGS
from trainers.models import build_check, model
from trainers.spec.architectures import architecture_of
from trainers.spec.kernel_rules import kernel_refusals
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

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
EXAONE: dict[str, Any] = {**LLAMA, "model_type": "exaone4", "sliding_window": None}
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


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_a_family_is_checked_with_an_attention_that_it_supports(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    build = model.build

    def noting(spec: ModelSpec, **settings: Any) -> model.Model:
        checked.append(settings["attention"])
        return build(spec, **settings)

    monkeypatch.setattr(model, "build", noting)
    spec = ModelSpec.from_config(config, name="mine")
    assert not build_check.reason_against(spec)
    layout = Layout(engine="ddp", dp_replicate=1, attention=checked[0])
    assert len(checked) == 1 and not list(kernel_refusals(Recipe(model=spec, seq_len=8, global_batch=1), layout))


def test_an_error_of_code_is_told_with_the_key_that_brings_it() -> None:
    """Checks exaone4 without a window and kinds of blocks, for which transformers divides by zero."""
    reason = build_check.reason_against(ModelSpec.from_config(EXAONE, name="mine"))
    assert reason.startswith("sliding_window null ends in ZeroDivisionError: ") and reason.endswith(", or leave it out")
    stated = {**EXAONE, "layer_types": ["full_attention"] * 2}
    assert not build_check.reason_against(ModelSpec.from_config(stated, name="mine"))
