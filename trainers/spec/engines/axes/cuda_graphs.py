"""`cuda_graphs`: whether a micro-step's kernels are launched one by one, or as one CUDA graph."""

from collections.abc import Iterator
from typing import Any

from trainers.spec.cluster import Cluster
from trainers.spec.engines.ddp import DdpAxis
from trainers.spec.layout_axes import MODEL_PARALLEL, LayoutAxes
from trainers.spec.recipe import Recipe


class _Ddp(DdpAxis):
    """The axis in DDP. Gradients keep their addresses, as graphs need, because they are views into DDP's buckets."""

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        if layout.cuda_graphs == "off":
            return
        untried = [f"{axis} {degree}" for axis, degree in layout.above_one(MODEL_PARALLEL).items()]
        untried += [f"{recipe.compression} compression"] if recipe.compression != "none" else []
        untried += [f"a {recipe.attention_mask} mask"] if recipe.attention_mask != "causal" else []
        untried += ["a loss of marked tokens"] if recipe.trained_tokens != "all" else []
        untried += ["experts"] if recipe.model.num_experts else []
        untried += ["adapters"] if recipe.adapter_rank else []
        half = recipe.compute_precision == "fp16" or recipe.float8_scaling
        untried += [f"{recipe.compute_precision} compute"] if half else []
        if layout.attention == "eager":
            yield "eager attention copies its mask from the host, which no CUDA graph can hold: choose attention sdpa"
        if untried:
            yield f"CUDA graphs were not tried with {' or '.join(untried)}: choose cuda_graphs off"

    def needs(self, layout: LayoutAxes, cluster: Cluster) -> Iterator[str]:
        if layout.cuda_graphs == "on" and cluster.device_kind == "cpu":
            yield "CUDA graphs are launched on CUDA devices, the cluster has CPUs: choose cuda_graphs off"

    def replays(self, layout: LayoutAxes) -> bool:
        return layout.cuda_graphs == "on"

    def in_effect(self, is_replayed: bool | None, casts: str) -> Any:
        return None if is_replayed is None else "on" if is_replayed else "off"


ENGINES = {"ddp": _Ddp(stages=(0,), elsewhere="kernels launched one by one")}
