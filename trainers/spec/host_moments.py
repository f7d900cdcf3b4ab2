"""AdamW's moments in host memory: the slices that pass through the device, and the host memory that they take."""

from collections.abc import Iterable, Iterator

from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.stages import stages_of

SLICE_VALUES = 2**24
"""Values of a slice: 32 MiB of each moment in bf16. A copy of this size reaches the link's bandwidth (0.6 ms at 55
GB/s), and takes longer than the host needs to launch a slice (below 0.1 ms); a larger slice only takes more of the
device's memory.
"""
LEAST_SLICES = 8
"""Slices of a small model, so that staging buffers take at most 3/8 of the device memory that the moments would."""
STAGED_SLICES = 3
"""Staging buffers: one is filled, one updated, one emptied. With two, both directions of the link would take turns."""
HOST_SHARE = 0.8
"""Share of the host's memory that moments may take; processes, their libraries and data take the rest."""


def moments_gib(recipe: Recipe, layout: Layout) -> float:
    """Returns the GiB of AdamW's moments on the rank that has most of them."""
    width = 2.0 if recipe.state_precision == "bf16" else 4.0
    sharing = layout.parts("width") * (layout.shards if layout.zero_stage else 1)
    return 2 * width * max(_parameters(recipe, layout)) / sharing / 2**30


def host_memory_refusal(recipe: Recipe, layout: Layout, cluster: Cluster) -> str | None:
    """Returns why the moments of `layout` do not fit in the host memory of a node, in one sentence; None if they do, or
    if that memory is unknown.
    """
    if layout.offload != "moments" or cluster.host_share_gib is None:
        return None
    needed_gib, allowed_gib = moments_gib(recipe, layout), HOST_SHARE * cluster.host_share_gib
    if needed_gib <= allowed_gib:
        return None
    return (
        f"moments of {needed_gib:.1f} GiB a rank do not fit in host memory, whose share for a {cluster.device_word} is"
        f" {cluster.host_share_gib:.1f} GiB, {HOST_SHARE:.0%} of it usable, got offload moments: choose offload none or"
        " more shards"
    )


def node_gib_needed(points: Iterable[tuple[Recipe, Layout]], devices_per_node: int) -> float:
    """Returns the GiB of host memory with which a node has room for the moments of all `points`; 0 if none has moments
    there.
    """
    needed_gib = (moments_gib(recipe, layout) for recipe, layout in points if layout.offload == "moments")
    return max(needed_gib, default=0.0) * devices_per_node / HOST_SHARE


def host_memory_sentence(recipe: Recipe, layouts: Iterable[Layout]) -> str:
    """Returns a sentence on the host memory of those `layouts` that have moments there, where it is unknown whether a
    node has so much; empty if there are none.
    """
    needed_gib = [moments_gib(recipe, layout) for layout in layouts if layout.offload == "moments"]
    if not needed_gib:
        return ""
    return (
        f"offload moments takes up to {max(needed_gib):.1f} GiB of host memory for each device: a plan does not know"
        " what the nodes have"
    )


def _parameters(recipe: Recipe, layout: Layout) -> Iterator[float]:
    """Yields the number of parameters of each pipeline rank, before tensor-parallel ranks and shards divide it."""
    model, stages, num_ranks = recipe.model, stages_of(recipe, layout), layout.parts("depth")
    block = model.over_blocks(lambda kind: kind.parameters(model)) / model.num_layers
    table = model.vocab_size * model.hidden_size
    for rank in range(num_ranks):
        own = stages[rank::num_ranks]
        outside = 0.0
        if own[0].has_embeddings:
            outside += model.embedding_parameters - (0 if num_ranks == 1 or model.tied_embeddings else table)
        if own[-1].has_head and num_ranks > 1:
            outside += table
        yield block * sum(len(stage.blocks) for stage in own) + outside
