"""A checkpoint as a transformers folder, and a training that begins with one."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.contract.family_cases import FAMILIES
from tests.contract.group import run_group
from tests.training.engines_group import FP_RECIPES, manifest, recipe, train
from trainers.engines.create import create_engine
from trainers.models.model import build, config_of
from trainers.records import checkpoints
from trainers.spec import architectures
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.training import initial_weights
from trainers.training.checkpoint import CheckpointWriter
from trainers.training.export import export

pytestmark = pytest.mark.contract

DDP = Layout(engine="ddp", dp_replicate=2)
ZERO_3 = Layout(engine="deepspeed", zero_stage=3, dp_shard=2, grad_sync="every")
FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=2)
NEOX = ModelSpec(
    name="gpt_neox", architecture="gpt_neox", num_layers=2, hidden_size=32, num_heads=4, vocab_size=97, max_positions=32
)
RECIPES = FP_RECIPES | {
    f"{name} of the contract": dataclasses.replace(recipe(), model=spec)
    for name, spec in {**FAMILIES, "gpt_neox": NEOX}.items()
}
"""One of each kind of state, and every family with each of its variants."""


def probe(recipe: Recipe) -> torch.Tensor:
    return torch.arange(2 * recipe.seq_len).reshape(2, -1) % recipe.model.vocab_size


def _played(recipes_and_folders: list[tuple[Recipe, str]]) -> list[dict[str, Any]]:
    """Plays each recipe on every rank: trains with DDP, saves and exports; then begins from the export with ZeRO-3 and
    FSDP2.
    """
    return [_logits_of(recipe, Path(folder)) for recipe, folder in recipes_and_folders]


def _logits_of(recipe: Recipe, folder: Path) -> dict[str, Any]:
    engine = create_engine(recipe, DDP, torch.device("cpu"))
    train(engine, recipe, DDP, 0)
    writer = CheckpointWriter(folder / "checkpoints", keep=1, is_current=lambda: True)
    writer.save(engine, manifest(recipe, engine))
    writer.finish()
    trained = engine.logits(probe(recipe)).clone()
    engine.close()
    newest = checkpoints.newest(folder / "checkpoints")
    assert newest is not None
    if dist.get_rank() == 0:
        export(newest, recipe, folder / "model")
    dist.barrier()
    begun: list[torch.Tensor] = []
    for layout in (ZERO_3, FSDP) if recipe in FP_RECIPES.values() else (FSDP,):
        other = create_engine(recipe, layout, torch.device("cpu"))
        initial_weights.load(other, folder / "model")
        begun.append(other.logits(probe(recipe)).clone())
        other.close()
    return {"trained": trained, "begun": begun}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name) for name in RECIPES}


@pytest.fixture(scope="module")
def logits_by_model(folders: dict[str, Path]) -> dict[str, dict[str, Any]]:
    recipes_and_folders = [(recipe, str(folders[name])) for name, recipe in RECIPES.items()]
    return dict(zip(RECIPES, run_group(_played, recipes_and_folders, 2), strict=True))


def test_every_family_is_exported_here() -> None:
    assert {recipe.model.architecture for recipe in RECIPES.values()} == set(architectures.names())


@pytest.mark.parametrize("name", RECIPES)
def test_the_exported_model_gives_the_logits_of_the_trained_one(
    name: str, folders: dict[str, Path], logits_by_model: dict[str, dict[str, Any]]
):
    model = AutoModelForCausalLM.from_pretrained(folders[name] / "model", attn_implementation="eager")
    assert model.dtype == torch.float32
    with torch.no_grad():
        logits = model(probe(RECIPES[name])).logits
    torch.testing.assert_close(logits, logits_by_model[name]["trained"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RECIPES)
def test_a_training_begins_with_the_weights_of_a_folder(name: str, logits_by_model: dict[str, dict[str, Any]]):
    for logits in logits_by_model[name]["begun"]:
        torch.testing.assert_close(logits, logits_by_model[name]["trained"], rtol=1e-6, atol=1e-6)


def test_a_folder_of_another_model_is_refused(folders: dict[str, Path], logits_by_model: dict[str, dict[str, Any]]):
    files = initial_weights.WeightFiles(folders["bloom"] / "model")
    with pytest.raises(ValueError, match=r"has no weight transformer\.wte\.weight: it is of another model"):
        files.find("transformer.wte.weight", "transformer", "gpt2")


def test_constants_that_files_have_are_those_of_the_model_or_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config_of(FAMILIES["apertus"])).save_pretrained(tmp_path)
    module = build(FAMILIES["apertus"], attention="eager").module
    initial_weights.WeightFiles(tmp_path).check(module)
    file, name = tmp_path / "model.safetensors", "model.layers.1.mlp.act_fn.beta"
    tensors = load_file(file)
    save_file({key: tensor.to(torch.bfloat16) for key, tensor in tensors.items()}, file)
    initial_weights.WeightFiles(tmp_path).check(module)
    save_file({**tensors, name: torch.tensor(0.25)}, file)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is 0\.25 in .*, and 0\.5 in the recipe's model"):
        initial_weights.WeightFiles(tmp_path).check(module)


def test_experts_that_a_folder_lacks_or_has_beside_are_named(tmp_path: Path) -> None:
    spec = FAMILIES["mixtral"]
    module = build(spec, attention="eager").module
    end = "block_sparse_moe.experts.{}.w{}.weight"
    tensors = {
        f"model.layers.{layer}.{end.format(expert, matrix)}": torch.zeros(
            (spec.hidden_size, spec.ffn_size) if matrix == 2 else (spec.ffn_size, spec.hidden_size)
        )
        for layer in range(spec.num_layers)
        for expert in range(spec.num_experts)
        for matrix in (1, 2, 3)
    } | {
        name.replace("mlp.gate", "block_sparse_moe.gate"): torch.ones(parameter.shape)
        for name, parameter in module.named_parameters()
        if ".experts." not in name
    }
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    initial_weights.WeightFiles(tmp_path).check(module)
    last = f"model.layers.0.{end.format(spec.num_experts - 1, 2)}"
    save_file({name: tensor for name, tensor in tensors.items() if name != last}, file)
    with pytest.raises(ValueError, match=rf"experts\.down_proj has shape \[{spec.num_experts - 1}, "):
        initial_weights.WeightFiles(tmp_path).check(module)
    more = f"model.layers.0.{end.format(spec.num_experts, 2)}"
    save_file({**tensors, more: tensors[last].clone()}, file)
    with pytest.raises(ValueError, match=rf"experts\.down_proj has shape \[{spec.num_experts + 1}, "):
        initial_weights.WeightFiles(tmp_path).check(module)


def test_a_router_of_zeros_is_refused(tmp_path: Path) -> None:
    module = build(FAMILIES["olmoe"], attention="eager").module
    tensors = {name: torch.ones(parameter.shape) for name, parameter in module.named_parameters()}
    save_file(tensors, tmp_path / "model.safetensors")
    initial_weights.WeightFiles(tmp_path).check(module)
    router = "model.layers.1.mlp.gate.weight"
    save_file({**tensors, router: torch.zeros_like(tensors[router])}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=rf"the router {re.escape(router)} is all zeros in .*: give a folder"):
        initial_weights.WeightFiles(tmp_path).check(module)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"holds neither model\.safetensors nor"):
        initial_weights.WeightFiles(tmp_path)
