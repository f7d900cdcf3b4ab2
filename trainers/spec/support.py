"""Refuses recipes and layouts that cannot run here, one sentence each, before anything starts; the driver records them
as `skipped`. Imports no torch.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainers.spec import architectures
from trainers.spec.adapter_rules import adapter_refusals
from trainers.spec.architectures import architecture_of
from trainers.spec.cluster import Cluster
from trainers.spec.expert_rules import expert_refusals
from trainers.spec.host_moments import host_memory_refusal
from trainers.spec.kernel_rules import is_hopper, kernel_needs, kernel_refusals
from trainers.spec.layout import Layout
from trainers.spec.mesh_rules import mesh_refusals, pipeline_refusals
from trainers.spec.model import ModelSpec
from trainers.spec.optional_kernels import OPTIONAL
from trainers.spec.placement import placement_refusal
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import Precision

_CAPABILITIES: Mapping[Precision, tuple[tuple[int, int], Precision]] = {
    "bf16": ((8, 0), "fp16"),
    "tf32": ((8, 0), "fp32"),
    "fp8_tensorwise": ((8, 9), "bf16"),
    "fp8_rowwise": ((8, 9), "bf16"),
}
"""Least compute capability for precisions that some CUDA devices lack, and the precision to choose below it."""


def refusal(recipe: Recipe, layout: Layout, cluster: Cluster) -> str | None:
    """Returns the reason why `recipe` cannot run on `layout` on all devices of `cluster`, in one sentence; None if it
    can.
    """
    if not recipe.has_model:
        return standing_refusal(recipe, layout, cluster.num_devices)
    reasons = (*_of_cluster(recipe, layout, cluster), *_of_engine(recipe, layout), *_of_model(recipe.model))
    return reasons[0] if reasons else None


def standing_refusal(recipe: Recipe, layout: Layout, num_devices: int) -> str | None:
    """Returns the reason why `recipe` cannot run on `layout` on `num_devices` devices of any kind, in one sentence;
    None if there is none.
    """
    reasons = (*_of_degrees(layout, num_devices), *_of_engine(recipe, layout))
    return reasons[0] if reasons else None


def not_installed(points: Sequence[tuple[Recipe, Layout]], axes: Iterable[str], cluster: Cluster) -> str | None:
    """Returns a sentence on values of `axes` that some of `points` could take if optional packages were installed; else
    None.

    `cluster` decides which kernels its devices can run.
    """
    missing: dict[str, str] = {}
    for (axis, value), kernel in OPTIONAL.items():
        if axis not in axes or kernel.is_installed or not is_hopper(cluster):
            continue
        choice: dict[str, Any] = {axis: value}
        others = ((recipe, dataclasses.replace(layout, **choice)) for recipe, layout in points)
        if any(standing_refusal(recipe, layout, layout.world_size) is None for recipe, layout in others):
            missing[f"{axis} {value}"] = kernel.requirement
    if not missing:
        return None
    requirements = " ".join(f"'{requirement}'" for requirement in dict.fromkeys(missing.values()))
    return (
        f"Kernels of packages that are not installed here are not tried: {', '.join(missing)} (pip install"
        f" {requirements})."
    )


def model_refusal(spec: ModelSpec) -> str | None:
    """Returns the reason why transformers has no such model, in one sentence; None if it has."""
    return next(_of_model(spec), None)


def _of_degrees(layout: Layout, num_devices: int) -> Iterator[str]:
    if layout.world_size != num_devices:
        yield (
            f"the layout's degrees multiply to {layout.world_size} devices, the cluster has {num_devices}:"
            " choose degrees that take all of them"
        )


def _of_cluster(recipe: Recipe, layout: Layout, cluster: Cluster) -> Iterator[str]:
    yield from _of_degrees(layout, cluster.num_devices)
    if cluster.num_nodes > 1:
        nodes = [str(rank // cluster.devices_per_node) for rank in range(cluster.num_devices)]
        if layout.world_size == len(nodes) and (misplaced := placement_refusal(layout, nodes)) is not None:
            yield misplaced
    precision = recipe.compute_precision
    if cluster.device_kind == "cpu":
        if precision == "fp16":
            yield "DeepSpeed has no fp16 on a CPU and torch no fast one: choose bf16 or fp32"
        if precision == "tf32":
            yield "TF32 is a mode of CUDA devices, the cluster has CPUs: choose fp32 or bf16"
        if layout.offload != "none":
            yield f"offload {layout.offload} moves states to host memory, where a CPU's are already: choose none"
    elif (needed := _CAPABILITIES.get(precision)) and (cluster.capability or (0, 0)) < needed[0]:
        (major, minor), other = needed
        capability = ".".join(map(str, cluster.capability)) if cluster.capability else "unknown"
        needs = f"CUDA compute capability {major}.{minor}"
        yield f"{precision} needs {needs}, that of {cluster.device} is {capability}: choose {other}"
    if (reason := host_memory_refusal(recipe, layout, cluster)) is not None:
        yield reason
    yield from layout.rules.needs(layout, cluster)
    yield from kernel_needs(recipe, layout, cluster)


def _of_engine(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons that hold for any devices: the engine's reasons, and reasons common to all engines."""
    if not recipe.has_model:
        yield from layout.rules.refusals(recipe, layout)
        return
    if recipe.state_precision == "bf16" and recipe.activation_precision != "bf16":
        yield (
            f"bf16 states go with bf16 products, got compute_precision {recipe.compute_precision}:"
            " choose compute_precision bf16 or state_precision fp32"
        )
    if recipe.state_precision == "bf16" and recipe.optimizer == "adafactor":
        yield "transformers' Adafactor keeps its states in fp32, never in bf16: choose state_precision fp32 or adamw"
    yield from layout.rules.refusals(recipe, layout)
    yield from adapter_refusals(recipe, layout)
    yield from layout.rules.depth_refusals(recipe, layout)
    yield from pipeline_refusals(recipe, layout)
    yield from expert_refusals(recipe, layout)
    yield from kernel_refusals(recipe, layout)
    yield from mesh_refusals(recipe, layout)


def _of_model(spec: ModelSpec) -> Iterator[str]:
    kind, family = spec.architecture, architecture_of(spec.architecture)
    if spec.config:
        return  # a configuration that transformers reads describes a model that transformers has
    if family.embedding_norm and not spec.embedding_norm:
        yield f"transformers has no {kind} without a norm after the embedding, {spec.name} asks for one"
    if spec.embedding_norm and not (family.embedding_norm or family.norm_place):
        declared = {name: architecture_of(name) for name in architectures.names()}
        others = [
            name for name, architecture in declared.items() if architecture.embedding_norm or architecture.norm_place
        ]
        yield (
            f"transformers has no {kind} with a norm after the embedding, {spec.name} asks for one:"
            f" use {' or '.join(others)}"
        )
    if "ffn_size" not in family.config_keys and spec.ffn_size != 4 * spec.hidden_size:
        yield (
            f"{kind} in transformers has ffn_size 4 x hidden_size, {4 * spec.hidden_size} for {spec.name},"
            f" got {spec.ffn_size}"
        )
    if "num_kv_heads" not in family.config_keys and spec.num_kv_heads != spec.num_heads:
        others = [name for name in architectures.names() if "num_kv_heads" in architecture_of(name).config_keys]
        yield (
            f"transformers has no {kind} with fewer key/value heads than heads,"
            f" {spec.name} asks for {spec.num_kv_heads} of {spec.num_heads}: use {' or '.join(others)}"
        )
