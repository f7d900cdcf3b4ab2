"""The hardware catalogue (`hardware.json`) and the notation of clusters.

A cluster is written `8xA100-80GB` (one node of eight), `4x8xH100` (four nodes of eight), a node's name in the catalogue
(`jean-zay-a100`, one node) or `4xjean-zay-a100`. Every figure of the catalogue has its source there. To add a device or
a node, add an entry to `hardware.json`; a user's own device has a file (`device_file`).
"""

import contextlib
import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from platform.common.errors import InputError
from platform.cost_model import constants, device_file
from platform.cost_model.collectives import INTER_HOP_S
from platform.cost_model.device import PLAIN_SHARE as PLAIN_SHARE
from platform.cost_model.device import Device
from platform.cost_model.spelling import changes_clocks, near_names, plain, without_memory
from trainers.records.plain_files import read_json
from trainers.spec.cluster import Cluster

LABEL_SHARE = constants.number("hardware", "LABEL_SHARE")
_NEAR = 0.2
_SAME = 0.12
"""Largest relative difference between a memory size in a name, in GB or GiB, and the driver's figure."""
MOST_DEVICES = 1_000_000
THIS_PROJECT = "layout-search"
"""The stack of this project's own trainers."""
UNKNOWN_LINK_GB_PER_S = constants.number("hardware", "UNKNOWN_LINK_GB_PER_S")
UNKNOWN_LINK_SIGMA = constants.number("hardware", "UNKNOWN_LINK_SIGMA")
BANDWIDTH_SHARE = constants.number("hardware", "BANDWIDTH_SHARE")
CLOCK_SIGMA = constants.number("hardware", "CLOCK_SIGMA")
_CARDS = ("pcie3", "pcie4", "pcie5", "nvlink4_bridge")
"""Links of plug-in cards; an SXM module has none of these."""
_CPU = re.compile(r"\b(xeon|epyc|ryzen|neoverse|graviton|core\(tm\)|cpu|x86_64|aarch64)\b", re.IGNORECASE)
_FILE = Path(__file__).with_name("hardware.json")


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
    """Datasheet bus bandwidth of one device inside a node."""
    intra_latency_s: float
    inter_gb_per_s: float
    """Achieved bandwidth of one node to the others, one direction."""
    inter_peak_gb_per_s: float
    """Datasheet bandwidth of one node to the others, one direction."""
    inter_latency_s: float
    price_per_device_hour: float | None
    price_source: str = ""
    """Source of the price: "stated", or "the catalogue's" with its date; "" without a price."""
    group_gb_per_s: float = math.inf
    """Bandwidth that a single process group reaches, if NCCL was measured to use one of a node's ports per group."""
    inter_hop_s: float = INTER_HOP_S
    """Latency of one step of a ring from node to node."""
    software: str = THIS_PROJECT
    """Name of the stack that trains on the cluster (`stacks.json`)."""
    link_sigma: float = 0.0
    """Log deviation of the time between nodes if the network is neither stated nor in the catalogue."""
    spread: float = 0.0
    """Log standard deviation of step times between runs, for networks with a known value."""
    network_source: Literal["stated", "catalogue", "measured", "assumed"] = "assumed"
    """Source of the bandwidth between nodes: "catalogue" if the user named a catalogue node, "assumed" for the device's
    usual node or without any entry.
    """
    usual_node: str = ""
    """The catalogue node whose links are used; "" without one."""

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    def has_part(self, num_devices: int) -> bool:
        """Returns whether `num_devices` are whole nodes, or a part of one node."""
        return num_devices >= 1 and (num_devices <= self.devices_per_node or num_devices % self.devices_per_node == 0)

    def with_devices(self, num_devices: int) -> "ClusterSpec":
        """Returns the same kind of cluster with `num_devices`: whole nodes, or one partly used node."""
        per_node = min(self.devices_per_node, num_devices)
        if not self.has_part(num_devices):
            raise InputError(
                f"{num_devices} devices are not whole nodes of {self.devices_per_node} {self.device.name}:"
                f" take a multiple of {self.devices_per_node}"
            )
        return dataclasses.replace(self, num_nodes=num_devices // per_node, devices_per_node=per_node)


@functools.cache
def catalogue() -> dict[str, Any]:
    """Returns the content of `hardware.json`, with the devices of the files listed in the environment."""
    content = read_json(_FILE, links=True)
    content["devices"] |= dict(device_file.read(path, content) for path in device_file.listed())
    return content


@functools.cache
def calibrated_families() -> frozenset[str]:
    """Returns the architectures of devices whose rates are based on training runs."""
    return frozenset(entry["architecture"] for entry in catalogue()["devices"].values() if "sigma" not in entry)


@functools.cache
def _names(kind: str) -> dict[str, str]:
    """Returns the entry's name by plain spelling, for entries of `kind`; the first entry keeps a shared spelling."""
    name_of: dict[str, str] = {}
    for name, entry in catalogue()[kind].items():
        for spelling in (name, *entry.get("aliases", ())):
            name_of.setdefault(plain(spelling), name)
    return name_of


def device_names() -> tuple[str, ...]:
    return tuple(catalogue()["devices"])


def node_names() -> tuple[str, ...]:
    return tuple(catalogue()["nodes"])


def find_device(name: str) -> Device:
    """Returns the device that `name` spells, ignoring case and dashes, or the device of a device file.

    A remark in brackets is ignored, but raises the deviation if it concerns the clocks. A socket is respected: an SXM
    module never matches a plug-in card, and has the memory that its name states.

    Raises:
        InputError: the device is unknown; the message has the nearest names and how to add one.
    """
    if (path := device_file.path_of(name)) is not None:
        return _device(*device_file.read(path, catalogue()))
    bare = re.sub(r"\(.*\)|NVIDIA|AMD|Instinct|Tesla", "", re.sub(r"(?i)\b(\d+)G\b", r"\1GB", name)).strip()
    # Makers' names, remarks and the kind of socket are removed one after the other.
    spellings = (name, bare, re.sub(r"(?i)[- ]?SXM\d?|[- ]?HBM\d?e?", "", bare))
    key = "CPU-core" if _CPU.search(name) else next(filter(None, (_spelled(name, text) for text in spellings)), None)
    if key is None:
        memoryless, memory_gb = without_memory(bare)
        if memory_gb is not None and "SXM" in name.upper():
            with contextlib.suppress(InputError):
                return find_device_by_memory(memoryless, memory_gb)
        entries = catalogue()["devices"].items()
        near = near_names(name, {text: key for key, entry in entries for text in (key, *entry.get("aliases", ()))})
        others = (
            f"near names are {', '.join(near)}" if near else f"no name is near, known are {', '.join(device_names())}"
        )
        raise InputError(
            f"unknown device {name!r}: {others}; describe others in a file of your own, 8xPATH.json, with the keys of"
            f" platform/cost_model/{_FILE.name}"
        )
    device = _device(key, catalogue()["devices"][key])
    return dataclasses.replace(device, sigma=max(device.sigma, CLOCK_SIGMA)) if changes_clocks(name) else device


def _spelled(name: str, text: str) -> str | None:
    """Returns the entry that `text`, a form of `name`, spells; None without one, or for a card if `name` is SXM."""
    key = _names("devices").get(plain(text))
    is_card = key is not None and catalogue()["devices"][key]["link"] in _CARDS
    return None if is_card and "SXM" in name.upper() else key


def _device(name: str, entry: Mapping[str, Any]) -> Device:
    fields = {field.name for field in dataclasses.fields(Device)} & set(entry)
    return Device(name=name, **{field: entry[field] for field in fields})


def word_on(text: str) -> str | None:
    """Returns a remark if `text` names a device variant that is not sold, such as "8xMI150X"; otherwise None."""
    for name, entry in catalogue()["devices"].items():
        aliases = [alias for alias in entry.get("taken_for_it", ()) if alias.lower() in text.lower()]
        if aliases:
            return f"{aliases[0]} is taken for {name}: {entry['note']}"
    return None


def find_device_by_memory(name: str, memory_gb: float | None) -> Device:
    """Returns the device of `find_device`. If the stated memory differs much, the device of the same family with this
    memory ("A100", 40).

    A name with a socket ("H100-SXM", 96) keeps the socket: if no such device has this memory, the named device gets it.

    Raises:
        InputError: the device is unknown.
    """
    device = find_device(name)
    if memory_gb is None or abs(memory_gb / device.memory_gib - 1) < _SAME:
        return device
    entries = catalogue()["devices"]
    if device.name not in entries:
        return device  # a device file states its memory
    family, link = device.name.split("-")[0], device.link
    says_socket = re.search(r"sxm|pcie|nvl", name, re.IGNORECASE) is not None
    sisters = [
        find_device(device_name)
        for device_name, entry in entries.items()
        if device_name.split("-")[0] == family and (entry["link"] == link or not says_socket)
    ]
    nearest = min(sisters, key=lambda sister: abs(sister.memory_gib - memory_gb))
    if abs(memory_gb / nearest.memory_gib - 1) < _NEAR:
        return dataclasses.replace(nearest, sigma=max(nearest.sigma, device.sigma if changes_clocks(name) else 0.0))
    alike = says_socket and 0.5 < memory_gb / device.memory_gib < 2
    return dataclasses.replace(device, memory_gib=memory_gb * LABEL_SHARE) if alike else device


def find_node(text: str, device: str) -> str | None:
    """Returns the catalogue node with `device`s whose name or alias occurs in `text`, such as a source; else None."""
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
    """Returns a cluster of `device`s with the links of catalogue node `node` (default: the usual node of the device).

    `inter_gb_per_s` and `intra_gb_per_s` above 0 are stated bandwidths of one node and of one device's link, in one
    direction, and replace the catalogue's; collectives reach the catalogue's share of them.
    """
    content = catalogue()
    link = content["links"][device.link]
    intra_gb_per_s = intra_gb_per_s or device.link_gb_per_s or 0.0
    usual_node = node or content["defaults"].get(device.name, "")
    entry = content["nodes"].get(usual_node, {})
    priced = entry if node else {}  # sellers of a device differ
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
        price_per_device_hour=priced.get("price_per_device_hour"),
        price_source=_price_source(priced),
        group_gb_per_s=_at_nodes(entry.get("group_gb_per_s", {}), num_nodes),
        inter_hop_s=entry["inter_hop_us"] * 1e-6 if "inter_hop_us" in entry else INTER_HOP_S,
        link_sigma=0.0 if inter_gb_per_s or entry else UNKNOWN_LINK_SIGMA,
        spread=entry.get("spread", 0.0),
        network_source="stated" if inter_gb_per_s else "catalogue" if node else "assumed",
        usual_node=usual_node,
    )


def _price_source(entry: Mapping[str, Any]) -> str:
    day = f"the catalogue's of {entry.get('price_date', 'no known day')}"
    return "" if entry.get("price_per_device_hour") is None else day


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
    device = dataclasses.replace(cluster.device, memory_gib=min(cluster.device.memory_gib, memory_gib))
    return dataclasses.replace(cluster, device=device)


def _at_nodes(measured: Mapping[str, float], num_nodes: int) -> float:
    """Returns the figure measured at the number of nodes nearest to `num_nodes`; infinity without any."""
    if not measured:
        return math.inf
    return measured[min(measured, key=lambda nodes: abs(math.log(int(nodes) / num_nodes)))]


def from_cluster(cluster: Cluster) -> ClusterSpec:
    """Returns a study's cluster: devices by the driver's name, with their actual memory.

    Raises:
        InputError: the device is not in the catalogue.
    """
    device = dataclasses.replace(find_device(cluster.device), memory_gib=cluster.device_memory_gib)
    return cluster_of(device, cluster.num_nodes, cluster.devices_per_node)


def datasheet_tflops(cluster: Cluster, precision: str) -> float | None:
    """Returns a device's datasheet peak in `precision`, TFLOP/s; None for CPUs and unknown devices."""
    if cluster.device_kind == "cpu":
        return None
    with contextlib.suppress(InputError):
        return find_device(cluster.device).peak_tflops(precision)
    return None


def _counted(name: str) -> tuple[int, str] | None:
    """Returns (count, device) for forms such as `8h100` and `H100x8`; None without a count or a known device."""
    match = re.fullmatch(r"(?P<count>\d{1,7})(?P<name>[A-Za-z].*)|(?P<name_>.+?)\s*[xX*]\s*(?P<count_>\d{1,7})", name)
    if match is None:
        return None
    count, device = match["count"] or match["count_"], match["name"] or match["name_"]
    with contextlib.suppress(InputError):
        find_device(device)
        return int(count), device
    return None


_NOTATION = re.compile(r"(?:(-?\d{1,19})\s*[xX*]\s*)?(?:(-?\d{1,19})\s*[xX*]\s*)?(.+)")


def names_device_file(text: str) -> bool:
    """Returns whether a cluster's text names a device file: after a count, or as a path that is not a probe's file."""
    match = _NOTATION.fullmatch(text.strip())
    path = device_file.path_of(match[3]) if match else None
    if match is None or path is None:
        return False
    return device_file.is_device_file(path) or (match[1] is not None and not Path(text).exists())


def find_cluster(text: str) -> ClusterSpec:
    """Returns the cluster that `text` names: `8xA100-80GB`, `4x8xH100`, a catalogue name, or a count and a name.

    Raises:
        InputError: a count is below 1, or the catalogue knows neither a device nor a node of this name.
    """
    match = _NOTATION.fullmatch(text.strip())
    if match is None:
        raise InputError("an empty cluster: write it as 8xA100-80GB, 4x8xH100 or a name of the catalogue")
    first, second, name = match.groups()
    counts = [int(count) for count in (first, second) if count is not None]
    if any(count < 1 for count in counts) or math.prod(counts) > MOST_DEVICES:
        wrong = "a count below 1" if min(counts) < 1 else f"more than {MOST_DEVICES:,} devices"
        raise InputError(f"cluster {text!r} has {wrong}: write it as 8xA100-80GB or 4x8xH100")
    node = _names("nodes").get(plain(name))
    if node is not None:
        entry = catalogue()["nodes"][node]
        per_node = counts[1] if len(counts) == 2 else entry["devices_per_node"]
        return cluster_of(find_device(entry["device"]), math.prod(counts[:1]), per_node, node=node)
    try:
        device = find_device(name)
    except InputError as error:
        if device_file.path_of(name) is not None:
            raise
        if meant := _counted(name):
            count, device_name = meant
            if len(counts) == 1:
                return find_cluster(f"{counts[0]}x{count}x{device_name}")
            wrong = "has no x between the count and the device" if name[0].isdigit() else "has its count last"
            right = "x".join(map(str, [*counts, count]))
            raise InputError(f"cluster {text!r} {wrong}: write it as {right}x{device_name.upper()}") from None
        if "," in name:
            raise InputError(
                f"cluster {text!r} is a list: a cluster has equal nodes of one device, plan one at a time"
            ) from None
        nodes = ", ".join(difflib.get_close_matches(name.lower(), node_names(), n=3, cutoff=0.5))
        raise InputError(
            f"cluster {text!r}: {error}" + (f"; nodes with near names: {nodes}" if nodes else "")
        ) from None
    num_nodes, per_node = (counts if len(counts) == 2 else [1, *(counts or [1])])[:2]
    return cluster_of(device, num_nodes, per_node)
