"""Adapters of a recipe: their layers are those of transformers' models, their FLOPs torch's; what cannot be is told."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.pytorch_utils import Conv1D

from search_spaces import load
from tests.contract.family_cases import FAMILIES
from tests.contract.mesh_cases import MODELS
from tests.needs import family
from tests.samples import MODEL
from trainers.models.adapters import add_adapters
from trainers.models.model import build
from trainers.spec.adapters import is_adapter, layers
from trainers.spec.architectures import architecture_of
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

ALL = {**MODELS, **FAMILIES}
_SEQ_LEN = 24


def recipe(model: ModelSpec = MODEL, **fields: Any) -> Recipe:
    changed: dict[str, Any] = {"adapter": "lora_8", **fields}
    return Recipe(model=model, seq_len=_SEQ_LEN, global_batch=8, **changed)


@functools.cache
def built(name: str) -> Any:
    family(ALL[name].architecture)
    return build(ALL[name], attention="eager")


@pytest.mark.parametrize("name", ALL)
def test_linear_layers_are_all_that_a_block_of_transformers_has(name: str) -> None:
    model = built(name)
    built_layers: dict[str, tuple[int, ...]] = {}
    for path, layer in model.blocks[-1].named_modules():
        if isinstance(layer, nn.Linear | Conv1D):
            built_layers[path] = (
                tuple(layer.weight.shape) if isinstance(layer, nn.Linear) else tuple(layer.weight.shape)[::-1]
            )
    stated = architecture_of(model.spec.architecture).linear_layers(model.spec)
    beside_experts = {path for path in built_layers if "shared_expert" in path}
    assert {path: sizes for path, sizes in built_layers.items() if path not in beside_experts} == stated


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_flops_are_those_of_torchs_counter(name: str) -> None:
    """Checks all but the gradient of the first block's inputs, which nobody asks for."""
    trained = recipe(ALL[name], compute_precision="fp32")
    module: Any = add_adapters(build(ALL[name], attention="eager"), trained).module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.01)
    for buffer in module.buffers():
        buffer.zero_()
    with FlopCounterMode(display=False) as counter:
        module(torch.zeros((1, _SEQ_LEN), dtype=torch.int64)).logits.sum().backward()
    counted = counter.get_total_flops() / _SEQ_LEN
    stated = trained.flops_per_token(keys_per_query=_SEQ_LEN)
    first = architecture_of(trained.model.architecture).linear_layers(trained.model)
    unasked = sum(2 * (outputs + trained.adapter_rank) * inputs for outputs, inputs in first.values())
    assert stated - unasked <= counted <= stated + 2 * trained.model.head_dim
    total = sum(
        parameter.numel() for parameter_name, parameter in module.named_parameters() if is_adapter(parameter_name)
    )
    assert total == trained.trained_parameters


def test_each_choice_is_a_recipe_of_its_own() -> None:
    changes: list[dict[str, Any]] = [{"adapter": "none"}, {}, {"lora_alpha": 16.0}, {"lora_targets": "dense"}]
    assert len({recipe(**fields).id for fields in changes}) == len(changes)


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        (ALL["llama"], {"lora_targets": "q_proj+w_proj"}, "'w_proj': choose of q_proj, k_proj"),
        (ALL["llama"], {"lora_targets": ""}, "names no linear layer of llama"),
        (ALL["llama"], {"lora_alpha": 0.0}, "lora_alpha must be a finite number above 0"),
        (ALL["llama"], {"adapter": "lora_3"}, "adapter must be one of none, lora_4"),
        (ALL["llama"], {"adapter": "none", "lora_targets": "q_proj"}, "lora_targets needs an adapter"),
        (ALL["mixtral"], {}, "stacks of matrices, which have no adapters: set lora_targets"),
        (ALL["mixtral"], {"adapter": "qlora_8", "lora_targets": "q_proj"}, "not held in NF4: choose an adapter lora_"),
        (ALL["llama"], {"adapter": "qlora_8"}, "scaled by blocks of 64, self_attn.q_proj of llama is 64 x 32"),
    ],
)
def test_bad_input_is_told(model: ModelSpec, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        recipe(model, **fields)


def test_names_are_ends_of_paths() -> None:
    assert list(layers(ALL["gpt2"], "c_proj")) == ["attn.c_proj", "mlp.c_proj"]
    assert list(layers(ALL["gpt2"], "mlp.c_proj+c_attn")) == ["attn.c_attn", "mlp.c_proj"]
    assert not layers(ALL["mixtral"], "q_proj").keys() - {"self_attn.q_proj"}


def test_set_takes_adapters_in_any_order() -> None:
    texts = ["lora_targets=q_proj+v_proj", "lora_alpha=16", "adapter=lora_4"]
    (changed,) = load("qwen3_8b").with_changes(texts).recipes
    assert (changed.adapter, changed.lora_targets, changed.lora_scale) == ("lora_4", "q_proj+v_proj", 4.0)


_DDP: dict[str, Any] = {"engine": "ddp", "dp_replicate": 2}


@pytest.mark.parametrize(
    ("fields", "layout", "words"),
    [
        ({}, {"engine": "deepspeed", "zero_stage": 1, "dp_shard": 2}, "DeepSpeed trains every parameter"),
        ({"compute_precision": "fp8_rowwise"}, _DDP, "choose compute_precision bf16"),
        ({"state_precision": "bf16"}, _DDP, "adapters and their states are fp32"),
        ({"compression": "bf16"}, _DDP, "choose compression none"),
        ({}, {"engine": "fsdp", "zero_stage": 3, "dp_shard": 2, "offload": "all"}, "choose offload none"),
        ({}, {"engine": "ddp", "pp": 2}, "adapters were not tried with pp above 1"),
        ({}, {**_DDP, "cuda_graphs": "on", "attention": "sdpa"}, "not tried with adapters"),
        ({"adapter": "qlora_8"}, {"engine": "ddp", "tp": 2}, "cut by rows over shards, got adapter qlora_8 and tp 2"),
    ],
)
def test_what_adapters_cannot_do_is_refused(fields: dict[str, Any], layout: dict[str, Any], words: str) -> None:
    model = dataclasses.replace(ALL["llama"], hidden_size=128, head_width=32, ffn_size=512)
    reason = standing_refusal(recipe(model, **fields), Layout(**layout), 2)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    "layout", [_DDP, {"engine": "fsdp", "zero_stage": 2, "dp_shard": 2}, {"engine": "ddp", "tp": 2}]
)
def test_what_adapters_can_do_is_not(layout: dict[str, Any]) -> None:
    assert standing_refusal(recipe(ALL["llama"]), Layout(**layout), 2) is None


def test_a_fused_block_has_no_weights_in_nf4() -> None:
    model = dataclasses.replace(ALL["gpt2"], hidden_size=64, ffn_size=256)
    reason = standing_refusal(recipe(model, adapter="qlora_8"), Layout(**_DDP, mlp="quack"), 2)
    assert reason is not None and "mlp quack reads weights that are not in NF4" in reason
