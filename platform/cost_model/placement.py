"""Placement of a layout's ranks on a cluster, and the ranks' names."""

from platform.cost_model.hardware import ClusterSpec
from trainers.spec.division import most_stages
from trainers.spec.kernel_rules import kernels_divided, kernels_too_new
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import CUTTING, DEGREES, IN_NODE
from trainers.spec.placement import nodes_of_groups
from trainers.spec.recipe import Recipe
from trainers.spec.stages import num_stages

_RANKS = ("the first pipeline stage (embedding)", "a middle pipeline stage", "the last pipeline stage (head)")


def misplaced(recipe: Recipe, layout: Layout, cluster: ClusterSpec, *, spans_nodes: bool = False) -> str:
    """Returns why the layout's degrees do not fit the cluster, in words that many layouts share; "" where they fit.
    Groups of `IN_NODE` may span nodes where `spans_nodes` says so.
    """
    reasons = (
        ("degrees do not divide the devices", layout.world_size != cluster.num_devices),
        *(
            (f"{name} does not divide the {counted}", size % getattr(layout, name))
            for name, declared in DEGREES.items()
            for size, counted in declared.sizes(recipe)
        ),
        *(
            (
                f"{name} reaches across nodes",
                not spans_nodes and nodes_of_groups(layout, name, cluster.devices_per_node) > 1,
            )
            for name in IN_NODE
        ),
        ("pp x virtual makes more stages than the model has parts", num_stages(layout) > most_stages(recipe)),
        ("grad_sync every under a pipeline", layout.pp > 1 and layout.grad_sync == "every"),
        *(
            (f"{name} does not divide the sequence", not DEGREES[name].divides(recipe, getattr(layout, name)))
            for name in CUTTING["tokens"]
        ),
        (
            "DeepSpeed's stages 2 and 3 under a pipeline",
            layout.pp > 1 and layout.zero_stage > 1 and not layout.rules.stages_with("virtual"),
        ),
    )
    first = next((reason for reason, holds in reasons if holds), "")
    return first or next(kernels_divided(layout), "") or older_than_kernels(layout, cluster)


def older_than_kernels(layout: Layout, cluster: ClusterSpec) -> str:
    """Returns why the cluster's devices are too old for kernels of the layout; "" where they are not."""
    if cluster.device.architecture in ("Hopper", "Blackwell"):
        return ""
    return next(kernels_too_new(layout, cluster.device.name), "")


def fullest_rank(layout: Layout, position: int) -> str:
    """Returns the name of the rank with the most memory; `position` is a value of `PeakMemory.binding_rank`."""
    return "every rank" if layout.pp == 1 else _RANKS[position]
