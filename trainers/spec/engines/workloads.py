"""The rules of a user's own training (a command or a function), which decides everything except its own axes."""

import dataclasses
from collections.abc import Iterator

from trainers.spec.engines.rules import EngineRules
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _WorkloadRules(EngineRules):
    def label(self, layout: LayoutAxes) -> str:
        return "" if layout.flags else "as it stands"

    def sharding(self, layout: LayoutAxes) -> str:
        return ""

    def strategy(self, layout: LayoutAxes) -> str:
        return ""

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        if recipe.workload is None or bool(recipe.command) != (self is COMMAND):
            yield f"engine {self.name} runs only {self.title} of the user: choose ddp, fsdp or deepspeed"


COMMAND = _WorkloadRules(
    name="command", title="the command", runtime="", grad_syncs={0: ("last",)}, runs_workloads=True
)
FUNCTION = _WorkloadRules(
    name="function",
    title="the function",
    runtime="trainers.engines.function:FunctionStepper",
    grad_syncs={0: ("last",)},
    runs_workloads=True,
)
