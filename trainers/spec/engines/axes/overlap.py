"""`overlap`: whether DeepSpeed's ZeRO stages communicate while they compute."""

from collections.abc import Iterator
from typing import Any

from trainers.spec.engines.deepspeed import DeepSpeedAxis
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe


class _DeepSpeed(DeepSpeedAxis):
    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        half_sums = recipe.compute_precision == "bf16" and recipe.state_precision == "fp32"
        if layout.overlap != "default" and layout.zero_stage == 1 and half_sums and layout.offload == "none":
            yield (
                "DeepSpeed stage 1 in bf16 with fp32 states reduces all gradients after the backward pass, got overlap"
                f" {layout.overlap}: choose default, or another zero_stage"
            )

    def zero_settings(self, recipe: Recipe, layout: LayoutAxes) -> dict[str, Any]:
        return {} if layout.overlap == "default" else {"overlap_comm": layout.overlap == "on"}

    def in_effect(self, engine: Any, recipe: Recipe) -> str:
        return "on" if engine.zero_overlap_comm() else "off"


ENGINES = {"deepspeed": _DeepSpeed(stages=(1, 2, 3))}
