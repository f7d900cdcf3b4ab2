"""Checks before the first trial that all nodes agree, are free and have disk space."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from platform.cluster.nodes import Node
from platform.common.errors import ClusterError
from platform.common.text import plural
from trainers.host.node import free_mib, versions

LEAST_FREE_MIB = 100.0
"""Free MiB required on the disk under a study and under each node's temporary folder."""
MOST_OFF_S = 2.0
"""Largest allowed difference in seconds of a node's clock from the driver's: workers' clocks keep budgets."""


def check(nodes: Sequence[Node], study: Path) -> None:
    """Checks that the cluster can run a search.

    Raises:
        ClusterError: the first problem, with the node's address and the remedy.
    """
    for fault in (*_unlike(nodes), *_occupied(nodes), *_full_disks(nodes, study), *_clocks_off(nodes)):
        raise ClusterError(fault)


def remarks(nodes: Sequence[Node]) -> Iterator[str]:
    """Yields a sentence on each condition that slows a search unnecessarily."""
    # A node with an older checkout does not report this; `check` refuses it.
    slow = [node for node in nodes if node.facts.get("uncompiled")]
    if slow:
        uncompiled = slow[0].facts["uncompiled"]
        have = f"and {plural(len(slow) - 1, 'more node')} have" if slow[1:] else "has"
        yield (
            f"Node {slow[0].address} {have} no bytecode of {', '.join(uncompiled)}, and Python writes none there:"
            " every process compiles them again, which takes seconds of each trial. Run once on the node, as the"
            " owner of the files:"
            f" python -m compileall -q -j 0 {' '.join(dict.fromkeys(uncompiled.values()))}"
        )
    yield from _replaced(nodes)


def _replaced(nodes: Sequence[Node]) -> Iterator[str]:
    """Yields a warning for the first node on which the system's CUDA libraries or cuDNN replace torch's own."""
    replaced = [node for node in nodes if node.facts.get("replaced_libraries")]
    if replaced:
        paths: list[str] = replaced[0].facts["replaced_libraries"]
        paths_text = f"{paths[0]} and {plural(len(paths) - 1, 'more file')}" if paths[1:] else paths[0]
        have = f"and {plural(len(replaced) - 1, 'more node')} load" if replaced[1:] else "loads"
        yield (
            f"Node {replaced[0].address} {have} {paths_text} by LD_LIBRARY_PATH in place of torch's own, with which"
            " attention has been 1.7 to 2.3 times as slow (huggingface/transformers#48163): take the folder out of"
            " LD_LIBRARY_PATH there and start Ray anew"
        )


def _unlike(nodes: Sequence[Node]) -> Iterator[str]:
    driver_versions = versions()
    for name in driver_versions if nodes else ():
        by_node = {node.address: node.facts["versions"].get(name, "none") for node in nodes}
        count = Counter(by_node.values())
        # The version of most nodes; the driver's in a tie.
        usual = max(count, key=lambda version: (count[version], version == driver_versions[name]))
        for address, version in by_node.items():
            if version != usual:
                other = next(peer for peer, value in by_node.items() if value == usual)
                yield (
                    f"node {address} has {name} {version}, node {other} has {usual}: install the same on all nodes"
                    " (make setup takes the versions of constraints.txt), then start Ray there anew"
                )


def _occupied(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        for fact in node.facts["held"]:
            size = "" if fact["gib"] is None else f"{fact['gib']:.1f} GiB"
            if fact["pid"] is None:
                who = f"a process that NVML does not name ({size} are used)"
            else:
                who = f"process {fact['pid']} ({', '.join(filter(None, (fact['name'], size)))})"
            yield f"GPU {fact['gpu']} of node {node.address} is held by {who}: end it, or take GPUs that are free"


def _full_disks(nodes: Sequence[Node], study: Path) -> Iterator[str]:
    free = [("this machine", str(study), free_mib(study))]
    free += [(f"node {node.address}", node.facts["temp"], node.facts["temp_free_mib"]) for node in nodes]
    for address, folder, mib in free:
        if mib < LEAST_FREE_MIB:
            yield (
                f"the disk under {folder} of {address} has {mib:.0f} MiB left,"
                f" a search needs {LEAST_FREE_MIB:.0f}: make room"
            )


def _clocks_off(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        if abs(node.clock_off_s) > MOST_OFF_S:
            direction = "ahead of" if node.clock_off_s > 0 else "behind"
            yield (
                f"the clock of node {node.address} is at least {abs(node.clock_off_s):.1f} s {direction} the driver's:"
                " set both by the same server (chrony, ntpd)"
            )
