"""A host's network adapters, and which of them NCCL or gloo chose.

NCCL reports its choice only in its log: lines of `NCCL_DEBUG=INFO`, in the formats of NCCL 2.18 to 2.28.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from trainers.records.probe import Adapter, LibraryChoice

_CLASSES = Path("/sys/class")
_ETHERNET = "1"
"""The kernel's type number of Ethernet devices; IP over InfiniBand has another."""
_NETWORK = re.compile(r"NCCL INFO (?:Using network|Initialized NET plugin) ([\w-]+(?: [\w-]+)*)")
_USING = re.compile(r"NCCL INFO NET/([\w-]+) : Using (.*)")
_NAMED = re.compile(r"\[\d+\]([^\s:\[\]]+):")
_VIA = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : .* via (?:NET/([\w -]+?)/\d+(/GDRDMA)?|(P2P|SHM))")
_HOSTS = re.compile(r"NCCL INFO comm .* nNodes (\d+)")
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")


def log_nccl() -> Path:
    """Makes NCCL log to a new file from the first communicator of this process on; returns the file."""
    handle, name = tempfile.mkstemp(prefix="nccl-", suffix=".log")
    os.close(handle)
    os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_FILE"] = "INFO", name
    os.environ.pop("NCCL_DEBUG_SUBSYS", None)
    return Path(name)


def nccl_choice(logs: Sequence[str]) -> LibraryChoice | None:
    """Returns NCCL's choice according to its ranks' logs; None if they show no communicator."""
    hosts = [int(number) for log in logs for number in _HOSTS.findall(log)]
    channels = [int(number) for log in logs for number in _CHANNELS.findall(log)]
    paths = [path for log in logs for path in _VIA.findall(log)]
    if not hosts and not channels and not paths:
        return None
    networks = _distinct(network for network, _, _ in paths if network)
    if not networks and max(hosts, default=1) > 1:
        networks = _distinct(network for log in logs for network in _NETWORK.findall(log))
    using = [(kind, names) for log in logs for kind, names in _USING.findall(log)]
    interfaces = _distinct(
        name for kind, names in using if kind in networks for name in _NAMED.findall(names.split(";")[0])
    )
    return LibraryChoice(
        library="NCCL",
        hosts=max(hosts, default=None),
        networks=networks,
        interfaces=interfaces,
        inside=_distinct(inside for _, _, inside in paths if inside),
        channels=min(channels, default=None),
        gpu_direct=all(direct for network, direct, _ in paths if network) if networks and paths else None,
    )


def gloo_choice(of_addresses: Sequence[str], hosts: int) -> LibraryChoice:
    """Returns gloo's choice: TCP over the interfaces in GLOO_SOCKET_IFNAME, else over `of_addresses`, the interfaces of
    the ranks' addresses.
    """
    named = os.environ.get("GLOO_SOCKET_IFNAME", "")
    interfaces = tuple(named.split(",")) if named else _distinct(filter(None, of_addresses))
    return LibraryChoice(library="gloo", hosts=hosts, networks=("Socket",), interfaces=interfaces)


def interface_of(address: str) -> str:
    """Returns this host's interface that has the address; "" if none has."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return ""


def adapters(classes: Path = _CLASSES) -> tuple[Adapter, ...]:
    """Returns this host's Ethernet and RDMA adapters that are up, from the kernel's folder `classes`."""
    adapters_up: list[Adapter] = []
    for path in sorted((classes / "net").glob("*")):
        if path.name != "lo" and _text(path / "type") == _ETHERNET and _text(path / "operstate") in ("up", "unknown"):
            mbit = _number(_text(path / "speed"))
            adapters_up.append(Adapter(name=path.name, kind="Ethernet", gbit_per_s=mbit / 1e3 if mbit > 0 else None))
    for port in sorted((classes / "infiniband").glob("*/ports/*")):
        if "ACTIVE" in _text(port / "state"):
            kind = "InfiniBand" if _text(port / "link_layer") == "InfiniBand" else "RoCE"
            gbit = _number(_text(port / "rate").partition(" ")[0])
            name = f"{port.parents[1].name}:{port.name}"
            adapters_up.append(Adapter(name=name, kind=kind, gbit_per_s=gbit if gbit > 0 else None))
    return tuple(adapters_up)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # some drivers refuse to state the speed
        return ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
