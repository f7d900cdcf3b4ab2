"""The hardware catalogue (`hardware.json`) and the notation of clusters.

A cluster is written `8xA100-80GB` (one node of eight), `4x8xH100` (four nodes of eight), a node's name in the
catalogue (`jean-zay-a100`, one node) or `4xjean-zay-a100`. Every figure of the catalogue carries its source there.
To add a device or a node, add an entry to `hardware.json`.
"""

import contextlib
import dataclasses
import difflib
import functools
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from platform.common.errors import InputError
from platform.cost_model import constants
from platform.cost_model.collectives import INTER_HOP_S
from trainers.records.plain_files import read_json
from trainers.spec.cluster import Cluster

LABEL_SHARE = constants.number("hardware", "LABEL_SHARE")
_NEAR = 0.2
_SAME = 0.12
"""Largest share by which a label, in GB or GiB, differs from the driver's figure."""
MOST_DEVICES = 1_000_000
THIS_PROJECT = "layout-search"
"""The stack of this project's own trainers."""
UNKNOWN_LINK_GB_PER_S = constants.number("hardware", "UNKNOWN_LINK_GB_PER_S")
UNKNOWN_LINK_SIGMA = constants.number("hardware", "UNKNOWN_LINK_SIGMA")
PLAIN_SHARE = constants.number("hardware", "PLAIN_SHARE")
BANDWIDTH_SHARE = constants.number("hardware", "BANDWIDTH_SHARE")
_CPU = re.compile(r"\b(xeon|epyc|ryzen|neoverse|graviton|core\(tm\)|cpu|x86_64|aarch64)\b", re.IGNORECASE)
_FILE = pathlib.Path(__file__).with_name("hardware.json")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator, as torch counts them."""

    name: str
    architecture: str
    """Its generation, by which some constants are stated (`constants.json`, `stacks.json`)."""
    memory_gib: float
    """Total memory that the driver reports."""
    bandwidth_gb_per_s: float
    host_gb_per_s: float
    """Datasheet bandwidth of the link to the host, in one direction."""
    tflops: Mapping[str, float]
    """Datasheet peak by compute precision, dense."""
    matmul_share: float
    """Share of the peak that large matrix products sustain in training."""
    flash_share: float
    """Share of the peak that fused attention sustains, forward and backward together."""
    units: int
    """Streaming multiprocessors, among which a product's tiles are distributed."""
    context_gib: float
    """Memory of a bare device context."""
    source: str
    sigma: float = 0.0
    """Log deviation of the device's rates where no training run on it was available."""
    best_tflops: float | None = None
    """Rate of the best bf16 product in a benchmark; None where none is published (stas00/ml-engineering,
    compute/accelerator, "maximum achievable matmul FLOPS").
    """
    scales: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Rate of products that `platform.probe` measured over `expected_tflops`, by precision; empty without a probe."""

    def peak_tflops(self, precision: str) -> float:
        """Returns the datasheet peak of `precision`; a device without fp8 units computes it as bf16."""
        return self.tflops.get(precision, self.tflops["bf16"])

    def expected_tflops(self, precision: str, training_share: float) -> float:
        """Returns the rate that a benchmark of large products should reach: the published one, else from `matmul_share`
        over `training_share`.
        """
        peak = self.peak_tflops(precision)
        if precision == "fp32":
            return PLAIN_SHARE * peak
        best = self.best_tflops or self.matmul_share / training_share * self.tflops["bf16"]
        return best * peak / self.tflops["bf16"]

    def scale(self, precision: str) -> float:
        """Returns the measured rate of large products over the catalogue's; 1 without a probe."""
        return self.scales.get(precision, self.scales.get("bf16", 1.0))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """Equal nodes of equal devices, with the achieved figures of their links."""

    name: str
    device: Device
    num_nodes: int
    devices_per_node: int
    intra_gb_per_s: float
    """Achieved bus bandwidth of one device in a ring inside a node."""
    intra_peak_gb_per_s: float
    """The same by the datasheet."""
    intra_latency_s: float
    inter_gb_per_s: float
    """Achieved bandwidth of one node to the others, in one direction."""
    inter_peak_gb_per_s: float
    """The same by the datasheet."""
    inter_latency_s: float
    price_per_device_hour: float | None
    group_gb_per_s: float = math.inf
    """Bandwidth that a single process group reaches, where NCCL was measured to use one of a node's ports
    for a group.
    """
    inter_hop_s: float = INTER_HOP_S
    """Latency of one step of a ring from node to node."""
    software: str = THIS_PROJECT
    """Name of the stack that trains there (`stacks.json`)."""
    link_sigma: float = 0.0
    """Log deviation of the time between nodes where the network is neither stated nor in the catalogue."""
    spread: float = 0.0
    """Standard deviation of the log of step times from run to run, where the network is known for it."""
    network_source: Literal["stated", "catalogue", "measured", "assumed"] = "assumed"
    """Source of the bandwidth between nodes: "catalogue" where its entry was named, "assumed" where it is that of the
    device's usual node or of none.
    """
    usual_node: str = ""
    """The catalogue's node whose links were taken; "" where it has none."""

    @property
    def num_devices(self) -> int:
        """Number of all devices."""
        return self.num_nodes * self.devices_per_node

    def with_devices(self, num_devices: int) -> "ClusterSpec":
        """Returns the same kind of cluster with `num_devices`: whole nodes, or one node that is not full."""
        per_node = min(self.devices_per_node, num_devices)
        if num_devices < 1 or num_devices % per_node:
            raise InputError(
                f"{num_devices} devices are not whole nodes of {self.devices_per_node} {self.device.name}:"
                f" take a multiple of {self.devices_per_node}"
            )
        return dataclasses.replace(self, num_nodes=num_devices // per_node, devices_per_node=per_node)


@functools.cache
def catalogue() -> dict[str, Any]:
    """Returns the content of `hardware.json`."""
    return read_json(_FILE, links=True)


@functools.cache
def calibrated_families() -> frozenset[str]:
    """Returns the architectures of devices whose rates were set on training runs."""
    return frozenset(entry["architecture"] for entry in catalogue()["devices"].values() if "sigma" not in entry)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


@functools.cache
def _names(kind: str) -> dict[str, str]:
    """Returns a map from every plain spelling of the entries of `kind` to the entry's name. The first entry with a
    spelling keeps it.
    """
    name_of: dict[str, str] = {}
    for name, entry in catalogue()[kind].items():
        for spelling in (name, *entry.get("aliases", ())):
            name_of.setdefault(_plain(spelling), name)
    return name_of


def device_names() -> tuple[str, ...]:
    """Returns the names of the catalogue's devices."""
    return tuple(catalogue()["devices"])


def node_names() -> tuple[str, ...]:
    """Returns the names of the catalogue's nodes."""
    return tuple(catalogue()["nodes"])


def find_device(name: str) -> Device:
    """Returns the device that `name` spells, whatever its case and dashes; a remark in brackets is ignored.

    Raises:
        InputError: no such device; the sentence has the nearest names and how to add one.
    """
    names = _names("devices")
    bare = re.sub(r"\(.*\)|NVIDIA|AMD|Instinct|Tesla", "", re.sub(r"(?i)(\d)G\b", r"\1GB", name))
    # Makers' names, remarks and the kind of socket are removed one after the other.
    spellings = (name, bare, re.sub(r"(?i)[- ]?SXM\d?|[- ]?HBM\d?e?", "", bare))
    key = "CPU-core" if _CPU.search(name) else None
    key = key or next((names[_plain(spelling)] for spelling in spellings if _plain(spelling) in names), None)
    if key is None:
        alike = [known_name for known_name in _names("devices") if _letters(known_name) == _letters(_plain(name))]
        near = difflib.get_close_matches(_plain(name), alike, n=3, cutoff=0.4)
        close = ", ".join(dict.fromkeys(_names("devices")[near_name] for near_name in near))
        names = f"near names are {close}" if near else f"no name is near, known are {', '.join(device_names())}"
        raise InputError(f"unknown device {name!r}: {names}; add others to platform/cost_model/{_FILE.name}")
    entry = catalogue()["devices"][key]
    fields = {field.name for field in dataclasses.fields(Device)} & set(entry)
    return Device(name=key, **{field: entry[field] for field in fields})


def word_on(text: str) -> str | None:
    """Returns a remark where `text` names a device in a form that nobody sells, such as "8xMI150X"; else None."""
    for name, entry in catalogue()["devices"].items():
        aliases = [alias for alias in entry.get("taken_for_it", ()) if alias.lower() in text.lower()]
        if aliases:
            return f"{aliases[0]} is taken for {name}: {entry['note']}"
    return None


def find_device_by_memory(name: str, memory_gb: float | None) -> Device:
    """Returns the device as `find_device` does; a stated memory that differs much selects the device of the same family
    that has it ("A100", 40).

    A name with a socket ("H100-SXM", 96) keeps that socket: where no such device has that memory, the named device gets
    it.

    Raises:
        InputError: no such device.
    """
    device = find_device(name)
    if memory_gb is None or abs(memory_gb / device.memory_gib - 1) < _SAME:
        return device
    entries = catalogue()["devices"]
    family, link = device.name.split("-")[0], entries[device.name]["link"]
    says_socket = re.search(r"sxm|pcie|nvl", name, re.IGNORECASE) is not None
    sisters = [
        find_device(device_name)
        for device_name, entry in entries.items()
        if device_name.split("-")[0] == family and (entry["link"] == link or not says_socket)
    ]
    nearest = min(sisters, key=lambda sister: abs(sister.memory_gib - memory_gb))
    if abs(memory_gb / nearest.memory_gib - 1) < _NEAR:
        return nearest
    alike = says_socket and 0.5 < memory_gb / device.memory_gib < 2
    return dataclasses.replace(device, memory_gib=memory_gb * LABEL_SHARE) if alike else device


def find_node(text: str, device: str) -> str | None:
    """Returns the catalogue's node with devices of kind `device` whose name or alias is in `text`, such as a source."""
    memoryless = device.split("-")[0]
    for name, entry in catalogue()["nodes"].items():
        spellings = (name, *entry.get("aliases", ()))
        same = entry["device"] == device or entry["device"].startswith(f"{memoryless}-")
        if same and any(spelling.lower() in text.lower() for spelling in spellings):
            return name
    return None


def cluster_of(
    device: Device,
    num_nodes: int,
    devices_per_node: int,
    *,
    node: str | None = None,
    inter_gb_per_s: float = 0.0,
    intra_gb_per_s: float = 0.0,
) -> ClusterSpec:
    """Returns a cluster of `device`s wired as catalogue node `node` (default: the usual node of that device).

    `inter_gb_per_s` and `intra_gb_per_s` above 0 are stated bandwidths of one node and of one device's link, in one
    direction, and replace the catalogue's; collectives reach the catalogue's share of them.
    """
    content = catalogue()
    link = content["links"][content["devices"][device.name]["link"]]
    usual_node = node or content["defaults"].get(device.name, "")
    entry = content["nodes"].get(usual_node, {})
    stated = inter_gb_per_s or entry.get("inter_gb_per_s", UNKNOWN_LINK_GB_PER_S)
    # Hosts that share one link domain are one node here.
    domain = entry.get("link_domain", 0)
    if domain > devices_per_node and num_nodes > 1:
        total = num_nodes * devices_per_node
        per_node = math.gcd(total, domain)
        num_nodes, devices_per_node, inter = total // per_node, per_node, per_node / devices_per_node
        stated *= inter if inter_gb_per_s else per_node / domain
    return ClusterSpec(
        name=node or f"{num_nodes}x{devices_per_node}x{device.name}",
        device=device,
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        intra_gb_per_s=(intra_gb_per_s or link["peak_gb_per_s"]) * link["bus_gb_per_s"] / link["peak_gb_per_s"],
        intra_peak_gb_per_s=intra_gb_per_s or link["peak_gb_per_s"],
        intra_latency_s=link["latency_us"] * 1e-6,
        inter_gb_per_s=stated * entry.get("inter_share", 0.75),
        inter_peak_gb_per_s=stated,
        inter_latency_s=entry.get("inter_latency_us", 60) * 1e-6,
        price_per_device_hour=entry.get("price_per_device_hour"),
        group_gb_per_s=_at_nodes(entry.get("group_gb_per_s", {}), num_nodes),
        inter_hop_s=entry["inter_hop_us"] * 1e-6 if "inter_hop_us" in entry else INTER_HOP_S,
        link_sigma=0.0 if inter_gb_per_s or entry else UNKNOWN_LINK_SIGMA,
        spread=entry.get("spread", 0.0),
        network_source="stated" if inter_gb_per_s else "catalogue" if node else "assumed",
        usual_node=usual_node,
    )


def with_network(cluster: ClusterSpec, inter_gb_per_s: float) -> ClusterSpec:
    """Returns `cluster` with this bandwidth between nodes; collectives reach the same share of it as before."""
    share = cluster.inter_gb_per_s / cluster.inter_peak_gb_per_s
    return dataclasses.replace(
        cluster,
        inter_gb_per_s=inter_gb_per_s * share,
        inter_peak_gb_per_s=inter_gb_per_s,
        group_gb_per_s=math.inf,
        link_sigma=0.0,
        network_source="stated",
    )


def with_memory_cap(cluster: ClusterSpec, memory_gib: float) -> ClusterSpec:
    """Returns `cluster` with at most this memory in each device."""
    device = dataclasses.replace(cluster.device, memory_gib=min(cluster.device.memory_gib, memory_gib))
    return dataclasses.replace(cluster, device=device)


def _at_nodes(measured: Mapping[str, float], num_nodes: int) -> float:
    """Returns the figure measured at the number of nodes nearest to `num_nodes`; infinity where there is none."""
    if not measured:
        return math.inf
    return measured[min(measured, key=lambda nodes: abs(math.log(int(nodes) / num_nodes)))]


def from_cluster(cluster: Cluster) -> ClusterSpec:
    """Returns a study's cluster: its devices by their driver's name, with their actual memory.

    Raises:
        InputError: the catalogue lacks the device.
    """
    device = dataclasses.replace(find_device(cluster.device), memory_gib=cluster.device_memory_gib)
    return cluster_of(device, cluster.num_nodes, cluster.devices_per_node)


def datasheet_tflops(cluster: Cluster, precision: str) -> float | None:
    """Returns a device's datasheet peak in `precision`, TFLOP/s; None for CPUs and for devices that the catalogue
    lacks.
    """
    if cluster.device_kind == "cpu":
        return None
    with contextlib.suppress(InputError):
        return find_device(cluster.device).peak_tflops(precision)
    return None


def _letters(plain_name: str) -> str:
    """Returns the letters with which a device's name begins: its product family, as in "rtx" and "h"."""
    return re.sub(r"[^a-z].*", "", plain_name)


def _with_an_x(name: str) -> str | None:
    """Returns `8xH100` for `8h100`; None where the name does not begin with a count, or its rest is no device."""
    match = re.fullmatch(r"(\d+)([A-Za-z].*)", name)
    if match is None:
        return None
    with contextlib.suppress(InputError):
        find_device(match[2])
        return f"{match[1]}x{match[2].upper()}"
    return None


def find_cluster(text: str) -> ClusterSpec:
    """Returns the cluster that `text` denotes: `8xA100-80GB`, `4x8xH100`, a catalogue name, or a count and a name.

    Raises:
        InputError: a count below 1, or a device and node that the catalogue does not know.
    """
    match = re.fullmatch(r"(?:(-?\d{1,19})\s*[xX*]\s*)?(?:(-?\d{1,19})\s*[xX*]\s*)?(.+)", text.strip())
    if match is None:
        raise InputError("an empty cluster: write it as 8xA100-80GB, 4x8xH100 or a name of the catalogue")
    first, second, name = match.groups()
    counts = [int(count) for count in (first, second) if count is not None]
    if any(count < 1 for count in counts) or math.prod(counts) > MOST_DEVICES:
        wrong = "a count below 1" if min(counts) < 1 else f"more than {MOST_DEVICES:,} devices"
        raise InputError(f"cluster {text!r} has {wrong}: write it as 8xA100-80GB or 4x8xH100")
    node = _names("nodes").get(_plain(name))
    if node is not None:
        entry = catalogue()["nodes"][node]
        per_node = counts[1] if len(counts) == 2 else entry["devices_per_node"]
        return cluster_of(find_device(entry["device"]), math.prod(counts[:1]), per_node, node=node)
    try:
        device = find_device(name)
    except InputError as error:
        if meant := _with_an_x(name):
            raise InputError(
                f"cluster {text!r} has no x between the count and the device: write it as {meant}"
            ) from None
        nodes = ", ".join(difflib.get_close_matches(name.lower(), node_names(), n=3, cutoff=0.5))
        raise InputError(
            f"cluster {text!r}: {error}" + (f"; nodes with near names: {nodes}" if nodes else "")
        ) from None
    num_nodes, per_node = (counts if len(counts) == 2 else [1, *(counts or [1])])[:2]
    return cluster_of(device, num_nodes, per_node)
