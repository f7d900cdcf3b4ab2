"""The rules of a user's command: it decides all of its layout but what its holes say."""

import dataclasses
from collections.abc import Iterator

from trainers.spec.engines.rules import EngineRules
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Command(EngineRules):
    def label(self, layout: LayoutAxes) -> str:
        return "" if layout.flags else "as it stands"

    def sharding(self, layout: LayoutAxes) -> str:
        return ""

    def strategy(self, layout: LayoutAxes) -> str:
        return ""

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        if recipe.has_model:
            yield "engine command runs a command of the user's and no model: choose ddp, fsdp or deepspeed"


ENGINE = _Command(
    name="command",
    title="the command",
    runtime="",
    grad_syncs={0: ("last",)},
    runs_commands=True,
)
