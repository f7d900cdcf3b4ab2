"""Ranks of a probe without Ray that pose as several machines."""

import json
import sys
import warnings

import torch
import torch.distributed as dist

from trainers.measuring.probe import probe


def main() -> None:
    """Runs one rank of a probe; rank 0 prints the findings.

    The command's arguments are the rank, the ranks' machines separated by commas, the rendezvous file, seconds, and
    for a trial's short probe the precision of its products.
    """
    rank, nodes, meeting, seconds = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], float(sys.argv[4])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=len(nodes))
    precision = sys.argv[5] if len(sys.argv) > 5 else None
    figures = probe(left_s=seconds, node=nodes[rank], address=f"host-{nodes[rank]}", precision=precision)
    if rank == 0:
        print(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
