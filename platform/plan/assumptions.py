"""The assumptions of an answer (network, length, batch, price, software) with the source of each."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from platform.cost_model.hardware import THIS_PROJECT, ClusterSpec, catalogue
from platform.plan.offers import without_effect
from platform.plan.plan_options import PlanOptions
from search_spaces.space import Space

SHARED_MEMORY = "shared_memory"
"""Link of CPU cores, of which a node may have any number."""
_MOST_CARDS = 16
"""Largest number of devices of a node for which the catalogue has no node."""
_BATCH_OF_ROWS = {"max_model": "of one micro-batch a device", "batch_rampup": "of each phase"}
"""Questions whose rows each have their own batch, with the text for it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """The assumed values of an answer and their sources."""

    cluster: ClusterSpec
    """The planned cluster with all values that the options state."""
    several_nodes: bool
    """Whether the answer depends on one network between nodes. False for a sweep, which tries several."""
    lengths: tuple[int, ...]
    length_source: str
    batches: tuple[int, ...]
    """Global batches; None if each row has its own."""
    batch_source: str
    ignored: tuple[str, ...]
    """Axes set by the user without an effect, because the software has its own kernels."""
    unused_gbps: float | None
    """A network stated for a cluster of one node, where it has no effect."""

    @classmethod
    def of(cls, options: PlanOptions, space: Space, cluster: ClusterSpec) -> "Assumptions":
        """Returns the assumptions of the answer to `options`."""
        several_nodes = options.sweep is None and (cluster.num_nodes > 1 or options.asks_of_several_nodes)
        of_rows = next((batch for question, batch in _BATCH_OF_ROWS.items() if getattr(options, question)), "")
        if options.min_nodes and "global_batch" in space.assumed:
            of_rows = "by default one that the fewest nodes share, --set changes it"
        return cls(
            cluster=cluster,
            several_nodes=several_nodes,
            lengths=tuple(dict.fromkeys(recipe.seq_len for recipe in space.recipes)),
            length_source=_source("seq_len", options, space),
            batches=() if of_rows else tuple(dict.fromkeys(recipe.global_batch for recipe in space.recipes)),
            batch_source=of_rows or _source("global_batch", options, space),
            ignored=without_effect(space, cluster.software),
            unused_gbps=None if several_nodes else options.node_gbps,
        )

    @property
    def gbit_per_s(self) -> float:
        """Gbit/s of one node: the measured rate of collectives if there is one, else the rate of its ports."""
        measured = self.cluster.network_source == "measured"
        return 8 * (self.cluster.inter_gb_per_s if measured else self.cluster.inter_peak_gb_per_s)

    @property
    def recipe(self) -> str:
        batch = f"{_listed(self.batches)} ({self.batch_source})" if self.batches else self.batch_source
        return f"length {_listed(self.lengths)} ({self.length_source}), global batch {batch}"

    @property
    def cost(self) -> str:
        price = self.cluster.price_per_device_hour
        return "no price known" if price is None else f"${price:g} a GPU-hour ({self.cluster.price_source})"

    def to_json(self) -> dict[str, Any]:
        """Returns the assumptions as JSON; the network is null for a single node."""
        cluster = self.cluster
        network = {"gbit_per_s_a_node": self.gbit_per_s, "source": cluster.network_source, "node": cluster.usual_node}
        price = cluster.price_per_device_hour
        return {
            "network": network if self.several_nodes else None,
            "seq_len": {"values": list(self.lengths), "source": self.length_source.partition(",")[0]},
            "global_batch": {"values": list(self.batches), "source": self.batch_source.partition(",")[0]},
            "price_per_gpu_h": {"value": price, "source": cluster.price_source or "unknown"},
            "software": cluster.software,
        }

    def sentences(self) -> tuple[str, ...]:
        """Returns the lines of the answer's header."""
        software = "own trainers" if self.cluster.software == THIS_PROJECT else self.cluster.software
        others = f"{self.recipe}, {self.cost}, software {software}"
        unused = f"{self.unused_gbps or 0:g} Gbit/s have no effect: there is one node, and no network between nodes"
        network = self.network if self.several_nodes else unused if self.unused_gbps else ""
        return tuple(filter(None, (self.large_node, network, others, *self.kernels)))

    @property
    def large_node(self) -> str:
        """Sentence on a node with more devices than nodes of the catalogue have; "" for others. Without a first count,
        as in 64xH100, all devices are on one node.
        """
        cluster = self.cluster
        usual = catalogue()["nodes"].get(cluster.usual_node, {}).get("devices_per_node", _MOST_CARDS)
        count, device = cluster.devices_per_node, cluster.device
        if count <= usual or device.link == SHARED_MEMORY:
            return ""
        nodes = -(-cluster.num_devices // usual)
        named = f"a {cluster.usual_node} has {usual}" if cluster.usual_node else f"a node has {usual} at most"
        return (
            f"all {count} {device.name} of a node are taken to be linked by {device.link}, and {named}: --cluster"
            f" {nodes}x{usual}x{device.name} are {nodes} nodes with a network between them"
        )

    @property
    def kernels(self) -> tuple[str, ...]:
        """Sentence on axes without an effect; empty if there are none."""
        axes, software = ", ".join(self.ignored), self.cluster.software
        return (f"--set {axes} has no effect: {software} has kernels of its own",) if axes else ()

    @property
    def network(self) -> str:
        """Text on the network between nodes."""
        source, node = self.cluster.network_source, self.cluster.usual_node
        if source == "assumed" and not node:
            return (
                f"the catalogue has no network of {self.cluster.device.name} nodes: {self.gbit_per_s:,.6g} Gbit/s a"
                " node are assumed, and intervals are as wide as networks differ; --node-gbps states it"
            )
        words = {
            "assumed": f"assumed, that of {node}; --node-gbps states another",
            "catalogue": f"that of {node} in the catalogue",
            "stated": "as stated",
            "measured": "as platform.probe measured",
        }
        return f"network between nodes {self.gbit_per_s:,.6g} Gbit/s a node ({words[source]})"


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _source(axis: str, options: PlanOptions, space: Space) -> str:
    if any(change.partition("=")[0].strip() == axis for change in options.set):
        return "stated"
    return "by default, --set changes it" if axis in space.assumed else "of the space"
