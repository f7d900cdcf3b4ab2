"""Linear layers with FP8 products by torchao: conversion and reading back. See `trainers.spec.float8`.

A product casts its inputs to FP8 with scales computed at that moment: to e4m3, but to e5m2 for gradients with a scale
per tensor. Weights are cast from fp32 for a scale per tensor, and from bf16 for a scale per row, under every engine:
FSDP2 gathers the former in FP8 and the latter in bf16. Weights that are not gathered are cast in each pass, or once a
step (`KeptCasts`). A CPU emulates FP8: it rounds and multiplies in fp32.
"""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainers.spec.float8 import MULTIPLE
from trainers.spec.recipe import Recipe

if TYPE_CHECKING:  # imports transformers, which workers import through `trainers.startup.import_stubs`
    from trainers.models.model import Model

_TORCH: Any = torch
"""For operations on lists, which torch does not export."""


def load() -> None:
    with _quiet():
        import torchao.float8  # noqa: F401  # pyright: ignore[reportUnusedImport]


def convert(
    block: nn.Module, recipe: Recipe, device: torch.device, *, gathered: bool, keeps_casts: bool = False
) -> None:
    """Makes a block's linear layers compute in FP8, in place; does nothing for a recipe without FP8. Call it after the
    weights were filled.

    `gathered` means that FSDP2 will gather the weights, in FP8 if possible. Otherwise the layers cast activations and
    weights to bf16 themselves, as FSDP2 would. `keeps_casts` means that layers with a scale per tensor multiply by the
    weights that `KeptCasts` has cast.
    """
    if not recipe.float8_scaling:
        return
    load()
    from torchao.float8 import convert_to_float8_training
    from torchao.float8.float8_linear_utils import swap_linear_layers

    config = _config(recipe, emulate=device.type == "cpu", gathered=gathered)
    convert_to_float8_training(block, config=config, module_filter_fn=_converts)
    if not gathered:
        layer = _layers()[1 if keeps_casts else 0]
        make = functools.partial(layer.from_float, config=config)
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
    layers = _convertible(models)
    words = [_word(layer) for layer in layers]
    if not any(words):
        return otherwise
    kinds = sorted({word or otherwise for word in words})
    return kinds[0] if len(kinds) == 1 else f"{' and '.join(kinds)} in {len(layers)} layers"


def _convertible(models: "Sequence[Model]") -> list[nn.Module]:
    return [module for model in models for block in model.blocks for module in block.modules() if _converts(module, "")]


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


class KeptCasts:
    """The casts of all weights whose layers keep them: one byte a value and a scale a weight, in place from step to
    step.

    They have the bits that torchao computes in each pass: the same scale, the product in fp32, one rounding. Its clamp
    is left out, because values times `largest FP8 value / largest value` round to no more than the former.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._layers: list[Any] = [layer for module in modules for layer in module.modules() if _keeps_cast(layer)]

    @torch.no_grad()
    def renew(self) -> None:
        """Casts the weights as they are now. Call it whenever they have changed."""
        if not self._layers:
            return
        _TORCH._foreach_copy_([layer.cast_scale for layer in self._layers], [*self._scales().unbind()])
        for layer in self._layers:
            # A scale of one dimension makes the product fp32 for bf16 weights too; it is rounded as it is written.
            torch.mul(layer.weight, layer.cast_scale.view(1), out=layer.cast_weight)

    def are_current(self) -> bool:
        """Returns whether all scales are those of the weights as they are now; waits for the device."""
        if not self._layers:
            return True
        return torch.equal(torch.stack([layer.cast_scale for layer in self._layers]), self._scales())

    @torch.no_grad()
    def _scales(self) -> torch.Tensor:
        from torchao.float8.float8_utils import amax_to_scale

        config = self._layers[0].config
        largest = torch.stack(_TORCH._foreach_norm([layer.weight for layer in self._layers], ord=math.inf))
        rounds = config.round_scales_to_power_of_2
        return amax_to_scale(largest, config.cast_config_weight.target_dtype, round_scales_to_power_of_2=rounds)


def casts_in_effect(models: "Sequence[Model]", kept: KeptCasts) -> str:
    """Returns when weights are cast, read from the modules: `cast` in each pass, or `kept` and current over a step."""
    layers = [layer for layer in _convertible(models) if _word(layer)]
    keeping = sum(map(_keeps_cast, layers))
    if not keeping:
        return "cast"
    if keeping < len(layers):
        return f"kept in {keeping} of {len(layers)} layers"
    return "kept" if kept.are_current() else "kept from other weights"


def _keeps_cast(layer: nn.Module) -> bool:
    return type(layer) is _layers()[1] if hasattr(layer, "cast_weight") else False


@functools.cache
def _layers() -> tuple[Any, Any]:
    """Returns the classes of the layers that cast their weights, and of those that keep a cast."""
    from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args
    from torchao.float8.float8_training_tensor import Float8TrainingTensor, GemmInputRole

    class CastingLinear(Float8Linear):
        """Casts its input to bf16 as FSDP2 does, and its weight too unless it has a scale per tensor."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output = matmul_with_hp_or_float8_args.apply(
                input.bfloat16(), self.factor().t(), self.linear_mm_config, self.config
            )
            bias: torch.Tensor | None = getattr(self, "bias", None)
            return output if bias is None else output + bias.to(output.dtype)

        def factor(self) -> torch.Tensor:
            """Returns the weight as the product takes it, which casts it unless it is in FP8."""
            return self.weight if _word(self) == "fp8_tensorwise" else self.weight.bfloat16()

    @torch.compiler.allow_in_graph
    class KeptCast(torch.autograd.Function):
        """Returns the cast of a weight, whose gradient is the weight's."""

        @staticmethod
        def forward(ctx: Any, weight: torch.Tensor, data: torch.Tensor, scale: torch.Tensor, config: Any) -> Any:
            return Float8TrainingTensor(data, scale, weight.dtype, config, GemmInputRole.WEIGHT)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return *gradients, None, None, None

    class KeptLinear(CastingLinear):
        """Multiplies by a cast of its weight that it keeps (`KeptCasts`); buffers that no state dictionary has."""

        @classmethod
        def from_float(cls, mod: nn.Linear, config: Any = None) -> Any:
            layer = super().from_float(mod, config)
            weight = layer.weight
            cast = torch.empty_like(weight, dtype=config.cast_config_weight.target_dtype, requires_grad=False)
            layer.register_buffer("cast_weight", cast, persistent=False)
            layer.register_buffer("cast_scale", torch.ones((), device=weight.device), persistent=False)
            return layer

        def factor(self) -> torch.Tensor:
            return KeptCast.apply(self.weight, self.cast_weight, self.cast_scale, self.linear_mm_config)

    return CastingLinear, KeptLinear


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
