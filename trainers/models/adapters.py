"""Low-rank adapters (`trainers.spec.adapters`) in a transformers model: added, and read back.

An adapter computes in the type of its layer's input. Its parameters have the states' type and are cast for each
product, under every engine alike.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from trainers.models import nf4
from trainers.models.model import Model
from trainers.spec.adapters import DOWN, UP, is_adapter
from trainers.spec.recipe import Recipe


class AdaptedLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return adapted(self, input, super().forward(input))


class _AdaptedTransposed(Conv1D):
    """`AdaptedLinear` for transformers' layer whose weight is [in, out]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return adapted(self, x, super().forward(x))


class _QuantisedLinear(nn.Linear):
    """`AdaptedLinear` with a weight in NF4."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return adapted(self, input, nf4.product(self, input))


class _QuantisedTransposed(Conv1D):
    """`_QuantisedLinear` for transformers' layer whose weight is [in, out]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return adapted(self, x, nf4.product(self, x))


def adapted(layer: Any, input: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Returns a layer's output plus its adapter's, if it has one."""
    if not hasattr(layer, DOWN):
        return output
    down, up = (getattr(layer, name).weight.to(input.dtype) for name in (DOWN, UP))
    return output + F.linear(F.linear(input, down) * layer.lora_scale, up)


def add_adapters(model: Model, recipe: Recipe) -> Model:
    """Freezes a model on the meta device and adds adapters to the recipe's linear layers, in place; returns it with the
    names of all its parameters. Does nothing for a recipe without adapters.
    """
    if not recipe.adapter_rank:
        return model
    model.module.requires_grad_(False)
    for block in model.blocks:
        for path in recipe.quantised_layers:
            layer: Any = block.get_submodule(path)
            layer.__class__ = _QuantisedTransposed if is_transposed(layer) else _QuantisedLinear
            layer.in_nf4 = True
        for path, (outputs, inputs) in recipe.adapted_layers.items():
            layer = block.get_submodule(path)
            if not recipe.is_quantised:
                layer.__class__ = _AdaptedTransposed if is_transposed(layer) else AdaptedLinear
            for name, rows, width in ((DOWN, recipe.adapter_rank, inputs), (UP, outputs, recipe.adapter_rank)):
                setattr(layer, name, nn.Linear(width, rows, bias=False, device="meta"))
            layer.lora_scale = recipe.lora_scale
    return dataclasses.replace(model, names={parameter: name for name, parameter in model.module.named_parameters()})


def is_transposed(layer: nn.Module) -> bool:
    """Returns whether the layer's weight is [in, out]."""
    return isinstance(layer, Conv1D)


def adapters_in_effect(models: Sequence[Model], recipe: Recipe) -> dict[str, Any]:
    """Returns the modules' adapters under the names of `Recipe`; the layers' paths if they differ from the recipe's.
    Counts parameters that wrongly train or are wrongly frozen.
    """
    paths, ranks, alphas = set[str](), set[int](), set[float]()
    layers: list[tuple[str, Any]] = [
        pair for model in models for block in model.blocks for pair in block.named_modules()
    ]
    for path, layer in layers:
        if hasattr(layer, DOWN):
            rank = layer.get_submodule(DOWN).weight.shape[0]
            paths.add(path)
            ranks.add(rank)
            alphas.add(layer.lora_scale * rank)
    if not paths:
        return {"adapter": "none"}
    others = sum(
        parameter.requires_grad != is_adapter(name)
        for model in models
        for name, parameter in model.module.named_parameters()
    )
    in_nf4 = {path for path, layer in layers if nf4.is_in_nf4(layer)}
    kind = "qlora" if in_nf4 else "lora"
    word = "+".join(f"{kind}_{rank}" for rank in sorted(ranks))
    if in_nf4 != {*recipe.quantised_layers}:
        word = f"{word} with {len(in_nf4)} layers of a block in NF4"
    return {
        "adapter": f"{word} and {others} parameters that should be otherwise" if others else word,
        "lora_targets": recipe.lora_targets if paths == {*recipe.adapted_layers} else "+".join(sorted(paths)),
        "lora_alpha": alphas.pop() if len(alphas) == 1 else None,
    }
