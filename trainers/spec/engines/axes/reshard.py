"""`reshard`: number of ranks over which stage 3 shards a block's parameters between forward and backward pass."""

from collections.abc import Iterator, Sequence
from typing import Any

from trainers.spec.engines.fsdp import FsdpAxis
from trainers.spec.layout_axes import MODEL_PARALLEL, LayoutAxes
from trainers.spec.recipe import Recipe


class _Fsdp(FsdpAxis):
    """The axis in FSDP2: the second all-gather of a block takes place among that many neighbouring ranks."""

    def contradictions(self, layout: LayoutAxes) -> Iterator[str]:
        if layout.reshard == 1:
            yield "reshard is a number of ranks, 2 or more, got 1: zero_stage 2 keeps parameters whole"

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        if layout.reshard and (layout.reshard >= layout.dp_shard or layout.dp_shard % layout.reshard):
            yield (
                f"reshard must divide dp_shard and be less, got reshard {layout.reshard} with dp_shard"
                f" {layout.dp_shard}: choose another, or 0"
            )
        if layout.reshard and layout.above_one(MODEL_PARALLEL):
            yield (
                f"FSDP2 makes the groups of reshard out of all ranks in a row, got reshard {layout.reshard} with"
                f" {' '.join(layout.axis_labels('degrees').values())}: set reshard to 0"
            )
        if layout.reshard and recipe.float8_scaling == "tensorwise":
            yield (
                f"FSDP2 spreads no weights that it gathered in FP8 over fewer ranks, got reshard {layout.reshard} with"
                f" {recipe.compute_precision}: set reshard to 0, or choose fp8_rowwise or bf16"
            )

    def fewest_shards(self, value: Any) -> int:
        return max(1, 2 * value)

    def wrapping(self, layout: LayoutAxes) -> dict[str, Any]:
        return {"reshard_after_forward": layout.reshard} if layout.reshard else {}

    def in_effect(self, units: Sequence[Any]) -> int | str | None:
        if not units:  # a pipeline stage with only an embedding or a head
            return None
        groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
        between = [(group.post_forward_mesh_info, group.mesh_info) for group in groups]
        sizes = {0 if info is None or info == world_mesh else info.shard_mesh_size for info, world_mesh in between}
        return next(iter(sizes)) if len(sizes) == 1 else f"{len(sizes)} kinds"


ENGINES = {"fsdp": _Fsdp(stages=(3,), elsewhere="parameters are spread over all shards")}
