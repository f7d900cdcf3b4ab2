"""Ranks of a probe without Ray; each claims the machine that the arguments name."""

import dataclasses
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from trainers.measuring.probe import probe
from trainers.measuring.probe_size import COPY_BYTES, WHOLE

MESSAGE_BYTES = (2**10, 2**12, 2**14, 2**16, 2**18)
CONNECTING_S = 1.0
"""Additional seconds of each group's first collective in a short probe, as with NCCL, which connects then."""


def connect_late(collective: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a collective whose first call in a group takes `CONNECTING_S` longer."""
    connected: set[Any] = set()

    def run(*tensors: torch.Tensor, group: Any, **options: Any) -> Any:
        if group not in connected:
            connected.add(group)
            time.sleep(CONNECTING_S)
        return collective(*tensors, group=group, **options)

    return run


def main() -> None:
    """Runs one rank of a probe; rank 0 prints the findings.

    The command's arguments are the rank, the ranks' machines separated by commas, the rendezvous file, the seconds and,
    for a trial's short probe, the precision of its products.
    """
    rank, nodes, meeting, seconds = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], float(sys.argv[4])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Little of each: which ranks measure what together is asked, not how fast they are.
    WHOLE["cpu"] = dataclasses.replace(
        WHOLE["cpu"], product_sizes=(64, 128), product_s=0.01, message_bytes=MESSAGE_BYTES, collective_s=0.001
    )
    COPY_BYTES["cpu"] = 2**20
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=len(nodes))
    precision = sys.argv[5] if len(sys.argv) > 5 else None
    if precision is not None:
        for name in ("all_reduce", "all_gather_into_tensor"):
            setattr(dist, name, connect_late(getattr(dist, name)))
    figures = probe(left_s=seconds, node=nodes[rank], address=f"host-{nodes[rank]}", precision=precision)
    if rank == 0:
        print(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
