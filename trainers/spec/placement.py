"""Whether a mesh fits the nodes that its ranks stand on. Without torch."""

from collections import Counter
from collections.abc import Sequence

from trainers.spec.layout import Layout


def placement_refusal(layout: Layout, nodes: Sequence[str]) -> str | None:
    """Returns why `layout` cannot run on ranks of these nodes (an id for each rank), in one sentence; else None. Groups
    of `tp`, which exchange activations several times in every block, stay within a node; other groups may span nodes.
    """
    if layout.model_parallel == 1:
        return None
    workers = Counter(nodes)
    if len(set(workers.values())) > 1:
        counts = ", ".join(map(str, sorted(workers.values())))
        return (
            f"{layout.degrees} takes as many workers on every node, got {counts} on {len(workers)} nodes:"
            " give all nodes the same number of devices"
        )
    groups: dict[tuple[int, ...], set[str]] = {}
    for rank, node in enumerate(nodes):
        others = tuple(coordinate for name, coordinate in layout.coordinates(rank).items() if name != "tp")
        groups.setdefault(others, set()).add(node)
    if (num_nodes := max(map(len, groups.values()))) > 1:
        return (
            f"a group of tp {layout.tp} stands on {num_nodes} nodes of {workers[nodes[0]]} workers each: choose a tp"
            " that divides a node's workers"
        )
    return None
