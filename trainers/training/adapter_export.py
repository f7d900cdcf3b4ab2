"""Adapters of a checkpoint as peft's files, or merged into the weights beside which they were trained."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from trainers.distributed.state import FROZEN, WEIGHT, StateTensor, whole_tensor
from trainers.engines.settings import model_dtype
from trainers.models import nf4
from trainers.models.adapters import is_transposed
from trainers.models.model import Model
from trainers.models.weights import draw
from trainers.records.checkpoints import read_manifest
from trainers.spec.adapters import DOWN, UP
from trainers.spec.recipe import Recipe
from trainers.training.base_digest import base_digest
from trainers.training.checkpoint_reading import TensorReader, check_base
from trainers.training.initial_weights import WeightFiles


def write_files(checkpoint: Path, recipe: Recipe, built: Model, out: Path, *, dtype: torch.dtype, base: str) -> None:
    """Writes `adapter_model.safetensors` and `adapter_config.json` into the folder `out`.

    Raises:
        ValueError: the checkpoint belongs to another recipe, or cannot be read.
    """
    tensors: dict[str, torch.Tensor] = {}
    with TensorReader(checkpoint, read_manifest(checkpoint).contents) as reader:
        for path, sizes in _adapted(recipe, built).items():
            for name, weight in zip((DOWN, UP), _adapter(reader, recipe, path, sizes), strict=True):
                tensors[f"base_model.model.{path}.{name}.weight"] = weight.to(dtype)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    settings: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "r": recipe.adapter_rank,
        "lora_alpha": recipe.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(recipe.adapted_layers),
        "fan_in_fan_out": any(is_transposed(built.module.get_submodule(path)) for path in _adapted(recipe, built)),
        "inference_mode": True,
    }
    (out / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def merged(checkpoint: Path, recipe: Recipe, built: Model, base: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each weight of the model in fp32 with its adapter added. The model's weights come from the transformers
    folder `base`, or from the recipe's seed. Weights that were in NF4 in training are dequantised first.

    Raises:
        ValueError: these are not the weights beside which the adapters were trained, or they cannot be read.
    """
    quantised = {f"{block}.{path}" for block in built.block_names for path in recipe.quantised_layers}
    weights, state = dict[str, torch.Tensor](), dict[str, StateTensor]()
    for parameter, name in built.names.items():
        weight, path = _frozen_weight(recipe, built, name, parameter, base), name.removesuffix(".weight")
        parts = {name: weight}
        if path != name and path in quantised:
            parts = dict(nf4.quantised_parts(path, weight))
            weight = nf4.dequantised(*parts.values())
        weights[name] = weight
        state |= {f"{FROZEN}/{part_name}": whole_tensor(part) for part_name, part in parts.items()}
    manifest = read_manifest(checkpoint)
    check_base(manifest, checkpoint, base_digest(state))
    adapted = _adapted(recipe, built)
    with TensorReader(checkpoint, manifest.contents) as reader:
        for name in list(weights):
            weight, path = weights.pop(name).float(), name.removesuffix(".weight")
            if path != name and path in adapted:
                down, up = _adapter(reader, recipe, path, adapted[path])
                added = recipe.lora_scale * up @ down
                weight += added.t() if is_transposed(built.module.get_submodule(path)) else added
            yield name, weight


def _adapted(recipe: Recipe, built: Model) -> dict[str, tuple[int, int]]:
    """Returns (outputs, inputs) of each layer of the model that has an adapter, by its path."""
    layers = recipe.adapted_layers.items()
    return {f"{block}.{path}": sizes for block in built.block_names for path, sizes in layers}


def _adapter(
    reader: TensorReader, recipe: Recipe, path: str, sizes: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns both weights of a layer's adapter."""
    outputs, inputs = sizes
    down = reader.tensor(f"{WEIGHT}/{path}.{DOWN}.weight", (recipe.adapter_rank, inputs))
    return down, reader.tensor(f"{WEIGHT}/{path}.{UP}.weight", (outputs, recipe.adapter_rank))


def _frozen_weight(recipe: Recipe, built: Model, name: str, parameter: torch.nn.Parameter, base: str) -> torch.Tensor:
    """Returns a frozen weight in the type in which training stored it."""
    shape = tuple(parameter.shape)
    if base:
        files = WeightFiles(Path(base))
        stored = files.find(name, built.module.base_model_prefix, recipe.model.architecture)
        files.check_tensor(stored, name, shape)
        weight = files.read(stored, (0,) * len(shape), shape)
    else:
        spec, device = recipe.model, torch.device("cpu")
        weight = draw(
            name,
            parameter.shape,
            seed=recipe.seed,
            std=spec.init_std,
            device=device,
            vector_start=spec.vector_start,
        )
    return weight.to(model_dtype(recipe))
