"""`fp8_weights`: whether FP8 weights are cast in each pass of each micro-step, or once a step and kept."""

from collections.abc import Iterator

from trainers.spec.engines.ddp import DdpAxis
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe


class _Ddp(DdpAxis):
    """The axis in DDP, whose ranks have whole weights that change only with the optimizer's step."""

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        if layout.fp8_weights == "cast":
            return
        if not recipe.float8_scaling:
            yield (
                f"only an FP8 recipe casts weights to FP8, got fp8_weights {layout.fp8_weights} with"
                f" {recipe.compute_precision}: choose cast, or fp8_tensorwise"
            )
        elif recipe.float8_scaling != "tensorwise":
            yield (
                f"weights with a scale for each row are cast along rows for one pass and along columns for the other,"
                f" got fp8_weights {layout.fp8_weights} with {recipe.compute_precision}: choose cast, or fp8_tensorwise"
            )

    def keeps_casts(self, layout: LayoutAxes) -> bool:
        return layout.fp8_weights == "kept"

    def in_effect(self, is_replayed: bool | None, casts: str) -> str:
        return casts


INSTEAD = {
    "fsdp": "choose cast, since FSDP2 gathers weights in FP8, and at zero_stage 2 keeps them until the optimizer's step"
}
ENGINES = {"ddp": _Ddp(stages=(0,), elsewhere="no products in FP8")}
