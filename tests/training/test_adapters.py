"""Checkpoints of adapters hold them alone, go on under other layouts beside the same weights, and are exported."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from tests.contract.group import run_group
from tests.training.engines_group import FP_RECIPES, manifest, train
from trainers.engines.create import create_engine
from trainers.models import nf4
from trainers.models.model import build
from trainers.records import checkpoints
from trainers.records.plain_files import read_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.training import checkpoint_reading, initial_weights
from trainers.training.base_digest import base_digest
from trainers.training.checkpoint import CheckpointWriter
from trainers.training.export import export, export_adapters

pytestmark = pytest.mark.contract

CPU = torch.device("cpu")
DDP = Layout(engine="ddp", dp_replicate=2)
OTHERS = (Layout(engine="fsdp", zero_stage=3, dp_shard=2), Layout(engine="ddp", tp=2))
RECIPES = {
    name: dataclasses.replace(
        FP_RECIPES[name],
        model=dataclasses.replace(FP_RECIPES[name].model, vocab_size=96),
        adapter="lora_4",
        learning_rate=3e-2,
    )
    for name in ("gpt2", "llama")
}
RECIPES["gpt2"] = dataclasses.replace(RECIPES["gpt2"], lora_targets="attn.c_attn+mlp.c_proj", lora_alpha=12.0)
RECIPES["llama in NF4"] = dataclasses.replace(
    RECIPES["llama"],
    model=dataclasses.replace(RECIPES["llama"].model, hidden_size=128, num_heads=2, ffn_size=192),
    adapter="qlora_4",
)


def probe(recipe: Recipe) -> torch.Tensor:
    return torch.arange(2 * recipe.seq_len).reshape(2, -1) % recipe.model.vocab_size


def _play(folder: str) -> dict[str, dict[str, Any]]:
    return {name: _played(recipe, Path(folder, name)) for name, recipe in RECIPES.items()}


def _played(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Trains adapters beside the weights of a folder with DDP, saves, trains on; goes on under each other layout."""
    if dist.get_rank() == 0:
        _write_base(recipe, folder / "base", 1)
        _write_base(recipe, folder / "other", 2)
    dist.barrier()
    engine = create_engine(recipe, DDP, CPU)
    initial_weights.load(engine, folder / "base")
    train(engine, recipe, DDP, 0)
    writer = CheckpointWriter(folder / "checkpoints", keep=1, is_current=lambda: True)
    writer.save(engine, manifest(recipe, engine))
    logits = engine.logits(probe(recipe)).clone()
    undisturbed = train(engine, recipe, DDP, 3)
    assert writer.finish() is not None
    digests = [base_digest(engine.training_state())]
    engine.close()
    newest = checkpoints.newest(folder / "checkpoints")
    assert newest is not None
    continued: list[list[float]] = []
    for layout in OTHERS if recipe.model.num_kv_heads > 1 else OTHERS[:1]:
        other = create_engine(recipe, layout, CPU)
        initial_weights.load(other, folder / "base")
        checkpoint_reading.load(other, newest)
        digests.append(base_digest(other.training_state()))
        continued.append(train(other, recipe, layout, 3))
        other.close()
    other = create_engine(recipe, DDP, CPU)
    initial_weights.load(other, folder / "other")
    refusal = ""
    try:
        checkpoint_reading.load(other, newest)
    except ValueError as error:
        refusal = str(error)
    return {
        "logits": logits,
        "undisturbed": undisturbed,
        "continued": continued,
        "digests": digests,
        "refusal": refusal,
        "checkpoint": newest,
    }


def _write_base(recipe: Recipe, folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    module: Any = build(recipe.model, attention="eager").module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    module.tie_weights()
    module.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@functools.cache
def _results(folder: Path) -> dict[str, dict[str, Any]]:
    return run_group(_play, str(folder), 2)


@pytest.mark.parametrize("name", RECIPES)
def test_training_goes_on_under_other_layouts(folder: Path, name: str) -> None:
    result = _results(folder)[name]
    assert len(set(result["digests"])) == 1
    for losses in result["continued"]:
        assert losses == pytest.approx(result["undisturbed"], rel=1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_a_checkpoint_has_adapters_alone(folder: Path, name: str) -> None:
    stored = checkpoints.read_manifest(_results(folder)[name]["checkpoint"]).contents.tensors
    weights = [key for key in stored if key.startswith("weight/")]
    assert weights
    assert all(key.endswith(("lora_A.weight", "lora_B.weight")) for key in stored)


@pytest.mark.parametrize("name", RECIPES)
def test_other_weights_beside_it_are_refused(folder: Path, name: str) -> None:
    result = _results(folder)[name]
    assert f"beside weights of digest {result['digests'][0]}, got" in result["refusal"]
    with pytest.raises(ValueError, match="bring back the folder"):
        export(result["checkpoint"], RECIPES[name], folder / name / "wrong", base=str(folder / name / "other"))


@pytest.mark.parametrize("name", RECIPES)
def test_merged_weights_are_those_that_were_trained(folder: Path, name: str) -> None:
    result, recipe = _results(folder)[name], RECIPES[name]
    export(result["checkpoint"], recipe, folder / name / "merged", base=str(folder / name / "base"))
    module: Any = AutoModelForCausalLM.from_pretrained(folder / name / "merged")
    with torch.no_grad():
        assert torch.allclose(module(probe(recipe)).logits, result["logits"], rtol=1e-5, atol=1e-5)
        plain: Any = AutoModelForCausalLM.from_pretrained(folder / name / "base")
        assert not torch.allclose(plain(probe(recipe)).logits, result["logits"], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", RECIPES)
def test_adapters_are_files_of_peft(folder: Path, name: str) -> None:
    result, recipe, out = _results(folder)[name], RECIPES[name], folder / name / "peft"
    base = folder / name / "base"
    export_adapters(result["checkpoint"], recipe, out, base=str(base))
    settings = read_json(out / "adapter_config.json")
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 4, recipe.lora_alpha)
    with safe_open(out / "adapter_model.safetensors", framework="pt") as file:
        assert len(file.keys()) == 4 * len(recipe.adapted_layers)
    import peft  # takes seconds

    model: Any = AutoModelForCausalLM.from_pretrained(base)
    for path in recipe.quantised_layers:
        for block in model.model.layers:
            layer = block.get_submodule(path)
            layer.weight.data = nf4.dequantised(*nf4.quantised(layer.weight.data).values())
    module: Any = peft.PeftModel.from_pretrained(model, str(out))
    layers = [name for name, layer in module.named_modules() if isinstance(layer, peft.tuners.lora.LoraLayer)]
    assert len(layers) == 2 * len(recipe.adapted_layers), layers
    with torch.no_grad():
        assert torch.allclose(module(probe(recipe)).logits, result["logits"], rtol=1e-5, atol=1e-5)
        merged = module.merge_and_unload()
        assert torch.allclose(merged(probe(recipe)).logits, result["logits"], rtol=1e-5, atol=1e-5)
    # peft adds the adapters to the same weights as `--merged`.
    export(result["checkpoint"], recipe, folder / name / "whole", base=str(base))
    ours = AutoModelForCausalLM.from_pretrained(folder / name / "whole").state_dict()
    assert ours.keys() == merged.state_dict().keys()
    for key, weight in merged.state_dict().items():
        assert torch.allclose(ours[key], weight, rtol=1e-5, atol=1e-6), key
