"""`after_backward`: whether stage 3 frees a block after each backward pass, or keeps it for the next micro-step."""

from collections.abc import Iterator, Sequence
from typing import Any

from trainers.spec.engines.fsdp import FsdpAxis
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe


class _Fsdp(FsdpAxis):
    """Implements the axis in FSDP2: what a backward pass gathered stays whole until the next forward pass has used it.
    A step's last backward pass frees it, since the weights change then.
    """

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        if layout.after_backward == "keep" and layout.pp > 1:
            yield (
                "a pipeline's forward passes do not wait for backward passes, got after_backward keep with pp"
                f" {layout.pp}: choose free"
            )

    def lay_out(self, units: Sequence[Any], layout: LayoutAxes) -> None:
        self.before_pass(units, layout, last=False)

    def before_pass(self, units: Sequence[Any], layout: LayoutAxes, *, last: bool) -> None:
        for unit in units if layout.after_backward == "keep" else ():
            unit.set_reshard_after_backward(last)

    def in_effect(self, units: Sequence[Any]) -> str | None:
        frees = {unit._get_fsdp_state()._fsdp_param_group.reshard_after_backward for unit in units}
        return {frozenset({True}): "free", frozenset({False}): "keep"}.get(frozenset(frees))


ENGINES = {"fsdp": _Fsdp(stages=(3,), elsewhere="parameters are freed after each backward pass")}
