"""Checks whether a mesh fits the nodes of its ranks. Imports no torch."""

from collections import Counter
from collections.abc import Sequence

from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES, IN_NODE


def placement_refusal(layout: Layout, nodes: Sequence[str]) -> str | None:
    """Returns the reason why `layout` cannot run on ranks of these nodes (a node id per rank), in one sentence; else
    None.

    Groups of the degrees in `IN_NODE` must span no more nodes than they do when ranks are numbered node by node.
    """
    if layout.model_parallel == 1:
        return None
    workers = Counter(nodes)
    if len(set(workers.values())) > 1:
        counts = ", ".join(map(str, sorted(workers.values())))
        return (
            f"{layout.degrees} needs the same number of workers on every node, got {counts} on {len(workers)} nodes:"
            " give all nodes the same number of devices"
        )
    for degree in layout.above_one(IN_NODE):
        groups: dict[tuple[int, ...], set[str]] = {}
        for rank, node in enumerate(nodes):
            others = tuple(coordinate for name, coordinate in layout.coordinates(rank).items() if name != degree)
            groups.setdefault(others, set()).add(node)
        num_nodes, fewest = max(map(len, groups.values())), nodes_of_groups(layout, degree, workers[nodes[0]])
        if num_nodes > fewest:
            return (
                f"a group of {layout.in_words([degree])} stands on {num_nodes} nodes of {workers[nodes[0]]} workers"
                f" each, and needs {fewest}: ranks are not numbered node by node"
            )
    return None


def reaches_across_nodes(layout: Layout, devices_per_node: int) -> str | None:
    """Returns a sentence if a group of a degree in `IN_NODE` spans several nodes, else None.

    Such groups exchange activations several times in every block, so these layouts run only on request.
    """
    for name, degree in layout.above_one(IN_NODE).items():
        if nodes_of_groups(layout, name, devices_per_node) > 1:
            return (
                f"{name} {degree} reaches across nodes of {devices_per_node} devices: --set {name}={degree} asks for it"
            )
    return None


def nodes_of_groups(layout: Layout, degree: str, workers: int) -> int:
    """Returns the largest number of nodes that a group of `degree` (with the axes inside it) spans, for ranks numbered
    node by node with `workers` ranks each.
    """
    block = layout.product(AXES[AXES.index(degree) :])
    if workers % block == 0:
        return 1
    starts = range(0, layout.world_size, block)
    return max((start + block - 1) // workers - start // workers + 1 for start in starts)
