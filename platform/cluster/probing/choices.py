"""Sentences on a probe's links: their speed, the communication library's choice, and better adapters of the hosts."""

from collections.abc import Iterator, Sequence

from platform.common.text import figure
from trainers.records.probe import Adapter, LibraryChoice, Probe, Scope

_SOCKET = "Socket"


def link_sentence(probe: Probe) -> str:
    """Returns the bus bandwidth of all-reduce at its largest size inside and between nodes; "" if none was measured."""
    rates = [f"{figure(rate)} GB/s {words}" for words, rate in _rates(probe)]
    return f"All-reduce has a bus bandwidth of {' and '.join(rates)}." if rates else ""


def _rates(probe: Probe) -> Iterator[tuple[str, float]]:
    between = f"between {len(probe.nodes)} nodes"
    scopes: tuple[tuple[Scope, str], ...] = (("node", "inside a node"), ("cluster", between))
    for scope, words in scopes:
        if groups := probe.of_size(scope, "all_reduce", largest=True):
            yield words, min(group.bus_gb_per_s for group in groups)


def choice_sentences(probe: Probe) -> tuple[str, ...]:
    """Returns sentences on the library's choice and each node's adapters; empty for probes without these facts."""
    sentences = [_chosen(probe.choice)] if probe.choice is not None else []
    hosts: dict[tuple[Adapter, ...], list[str]] = {}
    for address, adapters in zip(probe.nodes, probe.adapters, strict=False):
        hosts.setdefault(adapters, []).append(address)
    sentences += [f"{', '.join(addresses)} has {_listed(adapters)}." for adapters, addresses in hosts.items()]
    return tuple(sentences)


def disagreements(probe: Probe) -> tuple[str, ...]:
    """Returns a sentence for each way in which the library's choice is worse than the hosts' adapters allow."""
    choice = probe.choice
    if choice is None:
        return ()
    everywhere = [adapter for adapter in _first(probe.adapters) if all(_has(node, adapter) for node in probe.adapters)]
    return tuple(
        filter(None, (_of_hosts(probe, choice), _of_rdma(probe, choice, everywhere), _of_speed(choice, everywhere)))
    )


def _of_hosts(probe: Probe, choice: LibraryChoice) -> str:
    if choice.hosts is None or choice.hosts == len(probe.nodes):
        return ""
    return (
        f"{choice.library} takes the devices for those of {choice.hosts} hosts and Ray for those of"
        f" {len(probe.nodes)}: {choice.library} tells hosts apart by name, boot id and NCCL_HOSTID."
    )


def _of_rdma(probe: Probe, choice: LibraryChoice, adapters: Sequence[Adapter]) -> str:
    fast = [adapter for adapter in adapters if adapter.kind != "Ethernet"]
    if choice.library != "NCCL" or not choice.networks or not fast:
        return ""
    if _SOCKET not in choice.networks:
        slow = choice.gpu_direct is False
        return f"{_over(choice)} copies through host memory: GPUDirect RDMA is off." if slow else ""
    setting = _setting(probe, ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA"))
    why = f": the workers have {setting}" if setting else ""
    return f"{_over(choice)}, though every node has {_listed(fast)}{why}."


def _of_speed(choice: LibraryChoice, adapters: Sequence[Adapter]) -> str:
    if choice.networks != (_SOCKET,):
        return ""
    ethernet = {adapter.name: adapter.gbit_per_s for adapter in adapters if adapter.kind == "Ethernet"}
    used = [ethernet.get(name) for name in choice.interfaces]
    rates = [rate for rate in used if rate is not None]
    faster = [a for a in adapters if a.kind == "Ethernet" and a.gbit_per_s and rates and a.gbit_per_s > max(rates)]
    return f"{_over(choice)}, though every node has {_listed(faster)}." if faster else ""


def _chosen(choice: LibraryChoice) -> str:
    if not choice.networks:
        inside = {"P2P": "directly between GPUs", "SHM": "through host memory"}
        ways = " and ".join(inside.get(name, name) for name in choice.inside) or "inside the host"
        return f"{choice.library} moves data {ways}{_channels(choice)}."
    direct = {True: ", with GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}[choice.gpu_direct]
    hosts = f" between {choice.hosts} hosts" if choice.hosts else ""
    return f"{_over(choice)}{hosts}{direct if choice.networks != (_SOCKET,) else ''}{_channels(choice)}."


def _over(choice: LibraryChoice) -> str:
    words = {_SOCKET: "TCP sockets", "IB": "InfiniBand or RoCE verbs"}
    networks = " and ".join(words.get(name, name) for name in choice.networks)
    interfaces = f" over {', '.join(choice.interfaces)}" if choice.interfaces else ""
    return f"{choice.library} uses {networks}{interfaces}"


def _channels(choice: LibraryChoice) -> str:
    return f", {choice.channels} channels" if choice.channels else ""


def _listed(adapters: Sequence[Adapter]) -> str:
    rates = (f" {adapter.gbit_per_s:g} Gbit/s" if adapter.gbit_per_s else "" for adapter in adapters)
    named = [f"{adapter.name} ({adapter.kind}{rate})" for adapter, rate in zip(adapters, rates, strict=True)]
    return ", ".join(named) or "no adapter that the kernel shows"


def _first(nodes: Sequence[tuple[Adapter, ...]]) -> tuple[Adapter, ...]:
    return nodes[0] if nodes else ()


def _has(node: Sequence[Adapter], adapter: Adapter) -> bool:
    return any(other.name == adapter.name and other.kind == adapter.kind for other in node)


def _setting(probe: Probe, names: Sequence[str]) -> str:
    return ", ".join(f"{name}={probe.environment[name]}" for name in names if name in probe.environment)
