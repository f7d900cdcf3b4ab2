"""Whether a mesh fits the nodes that its ranks stand on. Without torch."""

from collections import Counter
from collections.abc import Sequence

from trainers.spec.layout import Layout


def placement_refusal(layout: Layout, nodes: Sequence[str]) -> str | None:
    """Returns why `layout` cannot run on ranks of these nodes (an id for each rank), in one sentence; else None. Groups
    of `tp` stand on no more nodes than with ranks numbered node by node.
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
    num_nodes, fewest = max(map(len, groups.values())), _nodes_of_tp(layout, workers[nodes[0]])
    if num_nodes > fewest:
        return (
            f"a group of tp {layout.tp} stands on {num_nodes} nodes of {workers[nodes[0]]} workers each, and needs"
            f" {fewest}: ranks are not numbered node by node"
        )
    return None


def reaches_across_nodes(layout: Layout, devices_per_node: int) -> str | None:
    """Returns the sentence on groups of `tp`, which exchange activations several times in every block, that do not
    stand on one node each; None where all do. Such layouts run where they are asked for.
    """
    if _nodes_of_tp(layout, devices_per_node) == 1:
        return None
    return f"tp {layout.tp} reaches across nodes of {devices_per_node} devices: --set tp={layout.tp} asks for it"


def _nodes_of_tp(layout: Layout, workers: int) -> int:
    """Returns the most nodes of `workers` ranks that one group of `tp` stands on, ranks numbered node by node."""
    if workers % layout.tp == 0:
        return 1
    starts = range(0, max(layout.world_size, layout.tp), layout.tp)
    return max((start + layout.tp - 1) // workers - start // workers + 1 for start in starts)
