"""Requests missing nodes from their provider, and waits for them.

Right after `ray up` only the head is there, and in a SLURM job or on Kubernetes the driver may be the first.
"""

import contextlib
import math
import time
from collections.abc import Callable, Generator
from typing import Any

from platform.cluster.providers import Awaited, provider_of
from platform.common.errors import ClusterError
from platform.common.output import print_line
from platform.common.text import duration, plural

WAIT_S = 20 * 60.0
"""Seconds that nodes may take to start; a large cloud machine with its image takes 10 to 15 min."""
_LOOK_S = 2.0
_REMIND_S = 60.0


@contextlib.contextmanager
def for_nodes(num_gpus: int | None, limit_s: float) -> Generator[None]:
    """Waits until the nodes are there, and prevents their removal as idle inside this context.

    `num_gpus` is None for all that may come. Does nothing if no further nodes are expected.

    Raises:
        InputError: too few GPUs are possible, or they are of unlike kinds.
        ClusterError: the nodes did not come within `limit_s` seconds.
    """
    import ray
    from ray.autoscaler.sdk import request_resources
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    provider = provider_of(ray)
    target = provider.awaited(num_gpus)
    if target is None:
        yield
        return
    if target.bundles:
        # A process caches the autoscaler version of its first cluster; requests for the other version are lost.
        is_autoscaler_v2(fetch_from_server=True)
        request_resources(bundles=target.bundles)
    try:
        wait(target, limit_s, live=lambda: _live(ray, target), state=provider.state)
        yield
    finally:
        if target.bundles:
            with contextlib.suppress(Exception):  # a lost head needs no message
                request_resources(bundles=[])
        if sentence := provider.bill():
            print_line(sentence)


def wait(
    target: Awaited,
    limit_s: float,
    *,
    live: Callable[[], int],
    state: Callable[[], str],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits for `target`; prints the state when it changes, and once a minute.

    Raises:
        ClusterError: the target did not come within `limit_s` seconds.
    """
    began_s, printed, printed_s = clock(), "", -math.inf
    while (num_alive := live()) < target.count:
        now = state()
        target_text = f"{target.num_gpus} GPUs are there" if target.num_gpus else f"{target.num_nodes} nodes are there"
        words = f"{num_alive} of {target_text}" + (f" ({now})" if now else "")
        waited_s = clock() - began_s
        if waited_s >= limit_s:
            raise ClusterError(
                f"{words} after {duration(waited_s)}, of {plural(target.num_nodes, 'node')} {target.description}:"
                f" look at {target.look} for what keeps them; --wait-for-gpus waits longer, --gpus takes fewer"
            )
        if words != printed or waited_s - printed_s >= _REMIND_S:
            nodes = plural(target.num_nodes, "node")
            print_line(
                f"Waiting for {nodes} {target.description}: {words};"
                f" {duration(limit_s - waited_s)} left (--wait-for-gpus)."
            )
            printed, printed_s = words, waited_s
        sleep(min(_LOOK_S, max(0.0, limit_s - waited_s)))
    if printed:
        print_line(f"{plural(num_alive, target.unit)} came after {duration(clock() - began_s)}.")


def _live(ray: Any, target: Awaited) -> int:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(int(resources.get("GPU", 0)) for resources in alive) if target.num_gpus else len(alive)
