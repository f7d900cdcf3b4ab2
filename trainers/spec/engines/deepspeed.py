"""The rules of DeepSpeed at each ZeRO stage."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

from trainers.spec.engines.engine_axis import EngineAxis
from trainers.spec.engines.rules import EngineRules, engines_having
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe


class DeepSpeedAxis(EngineAxis, abc.ABC):
    """An axis in DeepSpeed."""

    @abc.abstractmethod
    def zero_settings(self, recipe: Recipe, layout: LayoutAxes) -> dict[str, Any]:
        """Returns entries for `zero_optimization` in the configuration; empty for the library's defaults."""

    @abc.abstractmethod
    def in_effect(self, engine: Any, recipe: Recipe) -> Any:
        """Returns the axis's value as read back from DeepSpeed's engine."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _DeepSpeed(EngineRules):
    def label(self, layout: LayoutAxes) -> str:
        return f"ZeRO-{layout.zero_stage}"

    def sharding(self, layout: LayoutAxes) -> str:
        return self.label(layout)

    def wrong_sync(self, layout: LayoutAxes, required: str) -> str:
        when = "at every micro-step" if required == "every" else "at the last micro-step"
        return f"DeepSpeed ZeRO-{layout.zero_stage} reduces gradients {when}: grad_sync must be {required!r}"

    def contradictions(self, layout: LayoutAxes) -> Iterator[str]:
        if layout.zero_stage > 0 and layout.dp_replicate > 1:
            yield (
                f"DeepSpeed ZeRO-{layout.zero_stage} shards over all data-parallel ranks:"
                f" dp_replicate must be 1, got {layout.dp_replicate}"
            )
        yield from super().contradictions(layout)

    def lacks_axis(self, axis: str) -> str:
        return (
            f"DeepSpeed reduces gradients over all ranks alike, and its models for {axis} are not those of"
            f" transformers: {engines_having(axis)}"
        )

    def lacks_float8(self) -> str:
        return "DeepSpeed casts weights to bf16 by itself, from where FP8 would round them a second time"

    def lacks_buckets(self, layout: LayoutAxes) -> str:
        return "" if layout.zero_stage else "DeepSpeed stage 0 has buckets of one fixed size"

    def keeps_on_device(self, layout: LayoutAxes) -> str:
        return "" if layout.zero_stage else "DeepSpeed stage 0"

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        stage = layout.zero_stage
        if recipe.optimizer == "adafactor" and stage > 0:
            yield (
                f"DeepSpeed ZeRO-{stage} cuts weights into flat shards, over which Adafactor factors nothing"
                " and is another algorithm: choose zero_stage 0"
            )
        if recipe.state_precision == "bf16" and stage == 0:
            yield (
                "DeepSpeed stage 0 in bf16 always keeps fp32 master weights and states:"
                " choose zero_stage 1, 2 or 3, another engine, or state_precision fp32"
            )
        yield from super().refusals(recipe, layout)
        if layout.steps_on_host and recipe.state_precision == "bf16":
            yield (
                "DeepSpeed keeps offloaded states in bf16 with its own compiled CPU Adam alone, which is not used here:"
                " choose state_precision fp32, engine fsdp, or offload none"
            )
        if 0 < stage < 3 and layout.offload == "all":
            yield f"DeepSpeed offloads parameters at stage 3 alone, got offload all at stage {stage}: choose optimizer"
        if layout.mlp != "plain" and stage == 3:
            yield (
                "ZeRO-3 gathers a linear layer's weight when the layer is called, and a fused block calls none, got mlp"
                f" {layout.mlp}: choose plain, another zero_stage, or engine fsdp at stage 3"
            )
        if recipe.model.num_experts and stage == 3 and layout.experts != "grouped":
            yield (
                "ZeRO-3 frees a gathered parameter that products read as it is, and a loop over experts reads parts,"
                f" which would keep all whole between the two passes, got experts {layout.experts}: choose grouped,"
                " zero_stage 1 or 2, or engine fsdp at stage 3"
            )
        if layout.checkpointing == "selective" and stage == 3:
            yield (
                "ZeRO-3 gathers other parameters when a block is recomputed than at first, and selective checkpointing"
                " needs the same operations, got checkpointing selective: choose full or none, another zero_stage, or"
                " engine fsdp at stage 3"
            )
        if layout.compile != "none" and stage == 3:
            yield (
                "ZeRO-3 gathers each module's parameters by hooks that cannot be compiled, got compile"
                f" {layout.compile}: choose none, another zero_stage, or engine fsdp at stage 3"
            )


ENGINE = _DeepSpeed(
    name="deepspeed",
    title="DeepSpeed",
    runtime="trainers.engines.deepspeed:DeepSpeedEngine",
    grad_syncs={0: ("last",), 1: ("last",), 2: ("every",), 3: ("every",)},
    has_attention_masks=True,
    complexity_rank=2,
    packages=("deepspeed",),
    config_name="ds_config",
    config="trainers.engines.deepspeed_config:ds_config",
)
