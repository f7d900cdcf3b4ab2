"""Whether a mesh fits the nodes that its ranks stand on. Without torch."""

from collections import Counter
from collections.abc import Sequence

from trainers.spec.layout import Layout

WITHIN_A_NODE = ("cp", "tp")
"""Axes whose groups exchange activations in every block: a network between nodes is too slow for them."""


def placement_refusal(layout: Layout, nodes: Sequence[str]) -> str | None:
    """Returns why `layout` cannot run on ranks of these nodes (an id for each rank), in one sentence; else None."""
    if layout.model_parallel == 1:
        return None
    workers = Counter(nodes)
    if len(set(workers.values())) > 1:
        counts = ", ".join(map(str, sorted(workers.values())))
        return (
            f"{layout.degrees} takes as many workers on every node, got {counts} on {len(workers)} nodes:"
            " give all nodes the same number of devices"
        )
    for axis in WITHIN_A_NODE:
        groups: dict[tuple[int, ...], set[str]] = {}
        for rank, node in enumerate(nodes):
            others = tuple(coordinate for name, coordinate in layout.coordinates(rank).items() if name != axis)
            groups.setdefault(others, set()).add(node)
        if (num_nodes := max(map(len, groups.values()))) > 1:
            within = layout.cp * layout.tp if axis == "cp" else layout.tp
            return (
                f"a group of {axis} {getattr(layout, axis)} stands on {num_nodes} nodes of {workers[nodes[0]]} workers"
                f" each: choose degrees of which {within} ranks in a row stand on one node"
            )
    return None
