"""Checks whether host memory and disk have room for a checkpoint, before anything is copied or written."""

import shutil
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainers.distributed.state import StateTensor
from trainers.host.failures import size
from trainers.host.node import available_memory_bytes

_FP32_BYTES = 4


def disk_shortage(state: Mapping[str, StateTensor], folder: Path, group: dist.ProcessGroup) -> str:
    """Returns a clause if the disk of `folder` lacks room for a checkpoint, else "". A collective."""
    free = _free_bytes(folder) if dist.get_rank(group) == 0 else None
    answers = _gathered((_saved_bytes(state), free), group)
    needed_bytes, free_bytes = sum(own_bytes for own_bytes, _ in answers), answers[0][1]
    if free_bytes is None or needed_bytes <= free_bytes:
        return ""
    return f"a checkpoint needs {size(needed_bytes / 2**30)}, {size(free_bytes / 2**30)} are free in {folder}"


def checkpoint_gib(state: Mapping[str, StateTensor], group: dist.ProcessGroup) -> float:
    """Returns the size of a checkpoint, all ranks' files together. A collective."""
    return sum(_gathered(_saved_bytes(state), group)) / 2**30


def memory_shortage(state: Mapping[str, StateTensor], group: dist.ProcessGroup) -> str:
    """Returns a clause on the first host whose memory cannot hold its ranks' copies, else "". A collective."""
    needed_bytes: Counter[str] = Counter()
    available_bytes: dict[str, int] = {}
    for host, own_bytes, available in _gathered(
        (socket.gethostname(), _saved_bytes(state), available_memory_bytes()), group
    ):
        needed_bytes[host] += own_bytes
        if available is not None:
            available_bytes[host] = min(available, available_bytes.get(host, available))
    for host, available in available_bytes.items():
        if needed_bytes[host] > available:
            return (
                f"a checkpoint is copied to host memory first, which takes {size(needed_bytes[host] / 2**30)} on"
                f" {host}, where {size(available / 2**30)} are available: choose a layout that shards more, or more"
                " nodes"
            )
    return ""


def _saved_bytes(state: Mapping[str, StateTensor]) -> int:
    """Returns the bytes that this rank copies and writes."""
    return sum(_FP32_BYTES * part.tensor.numel() for tensor in state.values() for part in tensor.saved_parts)


def _free_bytes(folder: Path) -> int | None:
    existing = next((path for path in (folder, *folder.parents) if path.is_dir()), folder)
    try:
        return shutil.disk_usage(existing).free
    except OSError:
        return None


def _gathered(value: Any, group: dist.ProcessGroup) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
