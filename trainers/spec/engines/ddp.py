"""The rules of DDP: whole models on every rank, optional gradient compression."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

from trainers.spec.engines.engine_axis import EngineAxis
from trainers.spec.engines.rules import EngineRules, engines_having
from trainers.spec.layout_axes import CUTTING, MODEL_PARALLEL, LayoutAxes
from trainers.spec.recipe import Recipe

PIECE_VALUES = 2**27
"""Largest number of gradient values that bf16 compression copies at once."""


class DdpAxis(EngineAxis, abc.ABC):
    """An axis in DDP."""

    def replays(self, layout: LayoutAxes) -> bool:
        """Returns whether micro-steps are captured once and replayed."""
        return False

    def keeps_casts(self, layout: LayoutAxes) -> bool:
        """Returns whether weights are cast to FP8 once a step instead of in each pass."""
        return False

    @abc.abstractmethod
    def in_effect(self, is_replayed: bool | None, casts: str) -> Any:
        """Returns the axis's value, given whether micro-steps are replayed (None before the first step) and when FP8
        weights are cast.
        """


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Ddp(EngineRules):
    def lacks_axis(self, axis: str) -> str:
        return f"DDP reduces the gradients of all ranks alike, and ranks of {axis} have others: {engines_having(axis)}"

    def lacks_buckets(self, layout: LayoutAxes) -> str:
        return ""

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        yield from super().refusals(recipe, layout)
        if recipe.compression == "bf16" and recipe.state_precision == "bf16":
            yield "bf16 states exchange bf16 gradients already: choose compression none or state_precision fp32"
        if recipe.powersgd_rank and recipe.compute_precision == "fp16":
            yield (
                "an fp16 gradient that overflows would stay in PowerSGD's error feedback for ever:"
                " choose compute_precision bf16 or fp32, or compression bf16 or none"
            )
        # A layout with one data-parallel rank and "every" counts as "last": it exchanges nothing, so both mean the
        # same.
        if recipe.powersgd_rank and layout.grad_sync == "every":
            yield (
                "PowerSGD at every micro-step approximates other sums than at the last one, which is another recipe:"
                " choose grad_sync last"
            )


ENGINE = _Ddp(
    name="ddp",
    title="DDP",
    runtime="trainers.engines.ddp:DdpEngine",
    grad_syncs={0: ("last", "every")},
    axes=dict.fromkeys(("schedule", "virtual", "cp_exchange"), (0,)),
    has_compression=True,
    has_attention_masks=True,
    model_parallel=tuple(name for name in MODEL_PARALLEL if name not in CUTTING["experts"]),
    has_float8=True,
    has_adapters=True,
    has_host_moments=True,
    has_balance=True,
    complexity_rank=0,
    is_preloaded=True,
)
