"""Linear layers with FP8 products by torchao: conversion and reading back. See `trainers.spec.float8`.

A product casts its inputs to FP8 with scales computed at that moment: to e4m3, but to e5m2 for gradients with a scale
per tensor. Weights are cast from fp32 for a scale per tensor, and from bf16 for a scale per row, under every engine:
FSDP2 gathers the former in FP8 and the latter in bf16. A CPU emulates FP8: it rounds and multiplies in fp32.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainers.spec.float8 import MULTIPLE
from trainers.spec.recipe import Recipe

if TYPE_CHECKING:  # imports transformers, which workers import through `trainers.startup.import_stubs`
    from trainers.models.model import Model


def load() -> None:
    with _quiet():
        import torchao.float8  # noqa: F401  # pyright: ignore[reportUnusedImport]


def convert(block: nn.Module, recipe: Recipe, device: torch.device, *, gathered: bool) -> None:
    """Makes a block's linear layers compute in FP8, in place; does nothing for a recipe without FP8. Call it after the
    weights were filled.

    `gathered` means that FSDP2 will gather the weights, in FP8 if possible. Otherwise the layers cast activations and
    weights to bf16 themselves, as FSDP2 would.
    """
    if not recipe.float8_scaling:
        return
    load()
    from torchao.float8 import convert_to_float8_training
    from torchao.float8.float8_linear_utils import swap_linear_layers

    config = _config(recipe, emulate=device.type == "cpu", gathered=gathered)
    convert_to_float8_training(block, config=config, module_filter_fn=_converts)
    if not gathered:
        make = functools.partial(_casting_layer().from_float, config=config)
        swap_linear_layers(block, make, module_filter_fn=_converts)


def prepare_step(module: nn.Module, recipe: Recipe) -> None:
    """Computes the scales of all weights that FSDP2 will gather in FP8 in one collective, instead of one per weight."""
    if recipe.float8_scaling == "tensorwise":
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

        precompute_float8_dynamic_scale_for_fsdp(module)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a weight's shard without FSDP2's FP8 wrapper; shares its memory."""
    return getattr(tensor, "_tensor", tensor)


def precision_in_effect(models: "Sequence[Model]", otherwise: str) -> str:
    """Returns the recipe's name for the products of linear layers, read from the modules; `otherwise` without FP8."""
    layers = [
        module for model in models for block in model.blocks for module in block.modules() if _converts(module, "")
    ]
    words = [_word(layer) for layer in layers]
    if not any(words):
        return otherwise
    kinds = sorted({word or otherwise for word in words})
    return kinds[0] if len(kinds) == 1 else f"{' and '.join(kinds)} in {len(layers)} layers"


def _word(layer: Any) -> str:
    config = getattr(layer, "config", None)
    if config is None:
        return ""
    casts = (config.cast_config_input, config.cast_config_weight, config.cast_config_grad_output)
    granularities = {cast.scaling_granularity.value for cast in casts}
    return "+".join(
        sorted(
            {"tensorwise": "fp8_tensorwise", "axiswise": "fp8_rowwise"}[granularity] for granularity in granularities
        )
    )


def _converts(layer: nn.Module, _name: str) -> bool:
    return isinstance(layer, nn.Linear) and not layer.in_features % MULTIPLE and not layer.out_features % MULTIPLE


def _config(recipe: Recipe, *, emulate: bool, gathered: bool) -> Any:
    from torchao.float8 import Float8LinearConfig

    config = Float8LinearConfig.from_recipe_name(recipe.float8_scaling)
    in_float8 = gathered and recipe.float8_scaling == "tensorwise"
    return dataclasses.replace(config, emulate=emulate, enable_fsdp_float8_all_gather=in_float8)


@functools.cache
def _casting_layer() -> Any:
    from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args

    class CastingLinear(Float8Linear):
        """Casts its input to bf16 as FSDP2 does, and its weight too unless it has a scale per tensor."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            weight = self.weight if _word(self) == "fp8_tensorwise" else self.weight.bfloat16()
            output = matmul_with_hp_or_float8_args.apply(
                input.bfloat16(), weight.t(), self.linear_mm_config, self.config
            )
            bias: torch.Tensor | None = getattr(self, "bias", None)
            return output if bias is None else output + bias.to(output.dtype)

    return CastingLinear


@contextlib.contextmanager
def _quiet() -> Generator[None, None, None]:
    """Silences torchao's messages on libraries that it does not load, among them CUDA's on a machine without GPUs."""
    loggers = [logging.getLogger("torchao"), logging.getLogger("torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
