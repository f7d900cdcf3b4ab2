"""Placement of a layout's ranks on a cluster, and names of ranks."""

from collections.abc import Iterator

from platform.cost_model.hardware import ClusterSpec
from trainers.spec.division import most_stages
from trainers.spec.kernel_rules import kernels_divided, kernels_too_new
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import DEGREES, IN_NODE, MODEL_PARALLEL
from trainers.spec.placement import nodes_of_groups
from trainers.spec.recipe import Recipe
from trainers.spec.stages import num_stages

_RANKS = ("the first pipeline stage (embedding)", "a middle pipeline stage", "the last pipeline stage (head)")


def misplaced(recipe: Recipe, layout: Layout, cluster: ClusterSpec, *, spans_nodes: bool = False) -> str:
    """Returns the reason why the layout's degrees do not fit the cluster, in words that many layouts share; "" if they
    fit. With `spans_nodes`, groups of `IN_NODE` may span nodes.
    """
    return next(_reasons(recipe, layout, cluster, spans_nodes), "") or older_than_kernels(layout, cluster)


def _reasons(recipe: Recipe, layout: Layout, cluster: ClusterSpec, spans_nodes: bool) -> Iterator[str]:
    if layout.world_size != cluster.num_devices:
        yield "degrees do not divide the devices"
    for name, degree in layout.above_one(MODEL_PARALLEL).items():
        yield from (f"{name} does not divide the {counted}" for counted in DEGREES[name].undivided(recipe, degree))
        if not spans_nodes and name in IN_NODE and nodes_of_groups(layout, name, cluster.devices_per_node) > 1:
            yield f"{name} reaches across nodes"
    if num_stages(layout) > most_stages(recipe):
        yield "pp x virtual makes more stages than the model has parts"
    if layout.grad_sync == "every" and layout.parts("depth") > 1:
        yield "grad_sync every under a pipeline"
    if layout.zero_stage > 1 and layout.parts("depth") > 1 and not layout.rules.stages_with("virtual"):
        yield "DeepSpeed's stages 2 and 3 under a pipeline"
    yield from kernels_divided(layout)


def older_than_kernels(layout: Layout, cluster: ClusterSpec) -> str:
    """Returns the reason why the cluster's devices are too old for kernels of the layout; "" if they are not."""
    if cluster.device.architecture in ("Hopper", "Blackwell"):
        return ""
    return next(kernels_too_new(layout, cluster.device.name), "")


def fullest_rank(layout: Layout, position: int) -> str:
    """Returns the name of the rank with the most memory; `position` is a value of `PeakMemory.binding_rank`."""
    return "every rank" if layout.parts("depth") == 1 else _RANKS[position]
