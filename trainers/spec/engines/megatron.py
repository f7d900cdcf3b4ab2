"""The rules of Megatron-LM's data parallelism, with or without its distributed optimizer; predicted, never run here."""

import dataclasses
from collections.abc import Iterator

from trainers.spec.engines.rules import EngineRules
from trainers.spec.layout_axes import MODEL_PARALLEL, LayoutAxes
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Megatron(EngineRules):
    def label(self, layout: LayoutAxes) -> str:
        return f"ZeRO-{layout.zero_stage}" if layout.zero_stage else "DDP"

    def sharding(self, layout: LayoutAxes) -> str:
        return self.label(layout) if layout.zero_stage else "none"

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        yield (
            "engine megatron is of other software, which this project predicts and does not run:"
            " choose ddp, fsdp or deepspeed"
        )


ENGINE = _Megatron(
    name="megatron",
    title="Megatron-LM",
    runtime="",
    grad_syncs={0: ("last",), 1: ("last",), 2: ("last",)},
    axes={"schedule": (0, 1), "virtual": (0, 1)},
    model_parallel=MODEL_PARALLEL,
    has_attention_masks=True,
    has_float8=True,
)
