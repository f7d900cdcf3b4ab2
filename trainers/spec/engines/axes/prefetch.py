"""`prefetch`: number of blocks whose parameters are gathered ahead of the computing block."""

from collections.abc import Sequence
from typing import Any

from trainers.spec.engines.deepspeed import DeepSpeedAxis
from trainers.spec.engines.fsdp import FsdpAxis
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe


class _Fsdp(FsdpAxis):
    """The axis in FSDP2: each unit names the units (with the units inside them) to gather ahead, for the order of each
    pass.
    """

    def lay_out(self, units: Sequence[Any], layout: LayoutAxes) -> None:
        ahead = layout.prefetch
        for i, unit in enumerate(units if ahead else ()):
            unit.set_modules_to_forward_prefetch(_with_inner(units[i + 1 : i + 1 + ahead]))
            unit.set_modules_to_backward_prefetch(_with_inner(units[max(0, i - ahead) : i][::-1]))

    def in_effect(self, units: Sequence[Any]) -> int:
        ahead = (len(unit._get_fsdp_state()._states_to_forward_prefetch) for unit in units)
        return max(ahead, default=0) // max(1, len(_with_inner(units[:1])))


def _with_inner(units: Sequence[Any]) -> list[Any]:
    """Returns each unit, followed by the units inside it."""
    return [inner for unit in units for inner in unit.modules() if hasattr(inner, "set_modules_to_forward_prefetch")]


class _DeepSpeed(DeepSpeedAxis):
    """The axis in DeepSpeed: stage 3's limits count elements, here of the blocks ahead, the current block, and
    everything outside the blocks.
    """

    def zero_settings(self, recipe: Recipe, layout: LayoutAxes) -> dict[str, Any]:
        if not layout.prefetch:
            return {}
        ahead = layout.prefetch * recipe.model.parameters_per_layer
        alive = ahead + recipe.model.parameters_per_layer + recipe.model.embedding_parameters
        return {
            "stage3_prefetch_bucket_size": ahead,
            "stage3_max_live_parameters": alive,
            "stage3_max_reuse_distance": alive,
        }

    def in_effect(self, engine: Any, recipe: Recipe) -> int:
        return engine.zero_prefetch_bucket_size() // recipe.model.parameters_per_layer


ENGINES = {
    "fsdp": _Fsdp(stages=(2, 3), elsewhere="accelerate's own prefetching"),
    "deepspeed": _DeepSpeed(stages=(3,)),
}
