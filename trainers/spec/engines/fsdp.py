"""The rules of FSDP2: parameters sharded, kept or freed after the forward pass, replicated over groups of shards."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from trainers.spec.engines.engine_axis import EngineAxis
from trainers.spec.engines.rules import EngineRules
from trainers.spec.float8 import linear_sizes
from trainers.spec.layout_axes import MODEL_PARALLEL, LayoutAxes
from trainers.spec.recipe import Recipe


class FsdpAxis(EngineAxis, abc.ABC):
    """An axis in FSDP2."""

    def wrapping(self, layout: LayoutAxes) -> dict[str, Any]:
        """Returns arguments of `fully_shard` for a block; they override the runtime's."""
        return {}

    def lay_out(self, units: Sequence[Any], layout: LayoutAxes) -> None:
        """Configures the sharded blocks of one model, given in the order of the forward pass."""

    def before_pass(self, units: Sequence[Any], layout: LayoutAxes, *, last: bool) -> None:
        """Changes the sharded blocks of all models before a micro-step, a step's `last` one or another."""

    @abc.abstractmethod
    def in_effect(self, units: Sequence[Any]) -> Any:
        """Returns the axis's value as read back from the sharded blocks of all models."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Fsdp(EngineRules):
    def sharding(self, layout: LayoutAxes) -> str:
        kind = "full" if layout.zero_stage == 3 else "grad+opt"
        return f"hybrid {kind}" if layout.is_hybrid else kind

    def strategy(self, layout: LayoutAxes) -> str:
        # Stage 2 keeps parameters after the forward pass, so only gradients and states are sharded, as in ZeRO-2.
        if layout.is_hybrid:
            return "hsdp"
        return "fsdp" if layout.zero_stage == 3 else "zero2"

    def note(self, layout: LayoutAxes) -> str:
        return "" if layout.zero_stage == 3 else f"{self.name} stage {layout.zero_stage}"

    def lacks_buckets(self, layout: LayoutAxes) -> str:
        return "FSDP2 reduces a block at a time and has no buckets"

    def keeps_on_device(self, layout: LayoutAxes) -> str:
        return ""

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        if recipe.optimizer == "adafactor":
            yield (
                "transformers' Adafactor mixes plain tensors with FSDP2's sharded ones and fails there:"
                " choose zero_stage 0 with another engine"
            )
        yield from super().refusals(recipe, layout)
        if layout.offload == "optimizer":
            yield (
                "FSDP2 offloads weights and gradients along with the states, got offload optimizer: choose moments,"
                " all or none"
            )
        if layout.offload == "all" and recipe.compute_precision == "fp16":
            yield (
                "an fp16 loss scale is kept on the device, FSDP2's offloaded gradients are not:"
                " choose compute_precision bf16 or offload none"
            )
        if recipe.float8_scaling == "tensorwise":
            yield from _float8_refusals(recipe, layout)
        if layout.compile == "model":
            yield "FSDP2 gathers each block's parameters between blocks, got compile model: choose block"


def _float8_refusals(recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
    """Yields the reasons why FSDP2 cannot gather the weights of `recipe` in FP8 on `layout`."""
    uneven = {name: size for name, size in linear_sizes(recipe.model).items() if size % layout.shards}
    if uneven:
        yield (
            f"FSDP2 gathers in FP8 what is cut evenly over its {layout.shards} shards, got"
            f" {', '.join(f'{name} {size}' for name, size in uneven.items())} of {recipe.model.name}: choose a dp_shard"
            " that divides it, fp8_rowwise or bf16"
        )


ENGINE = _Fsdp(
    name="fsdp",
    title="FSDP2",
    runtime="trainers.engines.fsdp:FsdpEngine",
    grad_syncs={2: ("last", "every"), 3: ("last", "every")},
    axes=dict.fromkeys(("schedule", "virtual", "cp_exchange"), (2, 3)),
    model_parallel=MODEL_PARALLEL,
    has_attention_masks=True,
    has_float8=True,
    has_adapters=True,
    has_host_moments=True,
    has_balance=True,
    complexity_rank=1,
)
