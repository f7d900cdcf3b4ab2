"""Runs ranks of one host for a benchmark, in new processes each time."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def run(work: Callable[..., None], num_ranks: int, *arguments: Any) -> None:
    """Calls `work(device, *arguments)` in a process a rank, in one process group, each with a CUDA device where there
    are devices. It must be a function of a module, so that a new process can import it.

    Raises:
        torch.multiprocessing.spawn.ProcessRaisedException: a rank failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(_rank, (num_ranks, port, work, arguments), num_ranks)


def check(num_ranks: int) -> None:
    """Raises `ValueError` with a sentence where that many ranks cannot have a device each."""
    if not 1 <= num_ranks <= (torch.cuda.device_count() or num_ranks):
        raise ValueError(f"--ranks is one at least and a device each at most, got {num_ranks}")


def _rank(rank: int, num_ranks: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # of the host's cores a rank has but a share
    dist.init_process_group("nccl" if on_cuda else "gloo", rank=rank, world_size=num_ranks)
    work(device, *arguments)
    dist.destroy_process_group()
