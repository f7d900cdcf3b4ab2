"""A folder's weights beside the recipe's model: each tensor is used or named, and only plain numbers are read."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from search_spaces.transformers_config import space_of_config
from tests.training.values import MODEL
from trainers.models import model
from trainers.spec.model import ModelSpec
from trainers.training.start_check import reason_against

TINY_LLAMA = ModelSpec(
    name="tiny", architecture="llama", num_layers=2, hidden_size=16, num_heads=2, num_kv_heads=1, vocab_size=32
)
Tensors = dict[str, torch.Tensor]


def written(folder: Path, spec: ModelSpec, change: Any = None) -> Path:
    """Writes the folder of a model as transformers does, with its tensors changed by `change`."""
    module = model.build(spec, attention="eager").module.to_empty(device="cpu")
    module.tie_weights()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()  # else whatever memory held, which may be no number
    module.save_pretrained(folder)
    if change is not None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def reason(folder: Path, recipe: ModelSpec) -> str:
    held = space_of_config(folder / "config.json").recipe.model
    return reason_against(recipe, held, folder).replace(f"{folder}", "FOLDER")


@pytest.mark.parametrize("spec", [MODEL, TINY_LLAMA, dataclasses.replace(TINY_LLAMA, tied_embeddings=True)])
def test_the_folder_of_the_recipe_s_model_is_taken(spec: ModelSpec, tmp_path: Path):
    assert reason(written(tmp_path, spec), spec) == ""


def _unused(tensors: Tensors) -> None:
    tensors |= {f"model.layers.{i}.mlp.gate_proj.weight_scale_inv": torch.ones(1) for i in range(4)}


def _float8(tensors: Tensors) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)


def _integers(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


def _half(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float16)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.bfloat16)


def _former(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)


def _lacking(tensors: Tensors) -> None:
    del tensors["model.norm.weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_half, ""),
        (_former, ""),
        (_float8, "model.layers.1.mlp.up_proj.weight is stored as F8_E4M3 in FOLDER: give a folder with fp32, bf16 or"
                  " fp16 weights"),
        (_integers, "model.norm.weight is stored as I8 in FOLDER: give a folder with fp32, bf16 or fp16 weights"),
        (_lacking, "FOLDER has no weight model.norm.weight: it is of another model"),
        (_unused, "FOLDER has tensors that the recipe's model does not use:"
                  " model.layers.0.mlp.gate_proj.weight_scale_inv, model.layers.1.mlp.gate_proj.weight_scale_inv,"
                  " model.layers.2.mlp.gate_proj.weight_scale_inv and 1 more"),
    ],
)  # fmt: skip
def test_a_tensor_is_used_or_named(change: Any, message: str, tmp_path: Path):
    assert reason(written(tmp_path, TINY_LLAMA, change), TINY_LLAMA) == message


def test_a_second_copy_of_a_tied_table_is_taken_and_another_head_is_named(tmp_path: Path):
    tied = dataclasses.replace(TINY_LLAMA, tied_embeddings=True)
    table = "model.embed_tokens.weight"
    copied = written(tmp_path / "copy", tied, lambda tensors: tensors.update({"lm_head.weight": tensors[table] + 0}))
    assert reason(copied, tied) == ""
    other = written(tmp_path / "other", tied, lambda tensors: tensors.update({"lm_head.weight": tensors[table] + 1}))
    assert reason(other, tied) == "FOLDER has tensors that the recipe's model does not use: lm_head.weight"


@pytest.mark.parametrize("text", ["null", "{}", '{"weight_map": []}', '{"weight_map": {"a": "../b"}}', "["])
def test_an_odd_index_is_refused_in_a_sentence(text: str, tmp_path: Path):
    folder = written(tmp_path, TINY_LLAMA)
    (folder / "model.safetensors.index.json").write_text(text)
    assert reason(folder, TINY_LLAMA).startswith("FOLDER/model.safetensors.index.json ")


def test_each_difference_is_named(tmp_path: Path):
    folder = written(tmp_path, TINY_LLAMA)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 5e5
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    sentence = reason(folder, TINY_LLAMA)
    assert sentence.startswith(
        "FOLDER holds another model than the recipe: rms_norm_eps is 1e-05 there and 1e-06 in the"
    )
    assert "rope_parameters.rope_theta is 500000.0 there and 10000.0 in the recipe: search the folder's" in sentence
