"""Leaves slow nodes out of a search (`--exclude-slow`), by a probe of all devices and links."""

import dataclasses
import time
from pathlib import Path

from platform.cluster.nodes import ClusterHandle, handle_of
from platform.cluster.probing import probe_store
from platform.cluster.probing.findings import lagging
from platform.cluster.probing.probe_run import measure
from platform.common.errors import ClusterError
from platform.common.output import print_line
from platform.study.lagging_nodes import SHARE


def without_slow(handle: ClusterHandle, studies: Path, cpu_workers: int) -> ClusterHandle:
    """Returns `handle` without the lagging nodes, by a probe, which is stored as `platform.probe` does.

    Raises:
        ClusterError: the probe failed, or no node would be left.
    """
    probe = measure(handle, time.monotonic())
    probe_store.write(studies, probe)
    slow = lagging(probe, SHARE[handle.cluster.device_kind])
    if not slow:
        print_line(f"No device or node lags: {handle.cluster.label}.")
        return handle
    reasons = "; ".join(clause for _, clause in slow)
    addresses = {probe.nodes[index] for index, _ in slow}
    remaining = [node for node in handle.nodes if node.address not in addresses]
    if not remaining:
        raise ClusterError(
            f"{reasons}: --exclude-slow leaves out whole nodes, and none would be left; repair a node, or search"
            " without"
        )
    print_line(f"Left out: {reasons}.")
    fast = handle_of(remaining, cpu_workers=cpu_workers, driver_ip=handle.driver_ip, left_out=True)
    return dataclasses.replace(fast, head=handle.head, raylet=handle.raylet, is_local=handle.is_local)
