"""Room for checkpoints, in memory and on the disk, counted over all ranks before anything is copied or written."""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.contract.group import run_group
from trainers.distributed.state import StateTensor, whole_tensor
from trainers.training import checkpoint_room

pytestmark = pytest.mark.contract

MIB = 2**20


def _shortages(free_mib: float) -> tuple[str, str]:
    """Returns what is short on disk and in memory for two ranks with a copy of 2 MiB together, where so much is
    free of each.
    """
    room: Any = checkpoint_room
    before = room._free_bytes, room.available_memory_bytes
    room._free_bytes, room.available_memory_bytes = lambda _: int(free_mib * MIB), lambda: int(free_mib * MIB)
    group = dist.group.WORLD
    assert group is not None
    tensor = whole_tensor(torch.zeros(2, MIB // 4), replica=dist.get_rank(), num_replicas=2)
    state: dict[str, StateTensor] = {"weight/a": tensor}
    try:
        return room.disk_shortage(state, Path("/there"), group), room.memory_shortage(state, group)
    finally:
        room._free_bytes, room.available_memory_bytes = before


def _played(free_mib: list[float]) -> list[tuple[str, str]]:
    return [_shortages(number) for number in free_mib]


def test_a_shortage_is_told_with_what_is_needed_and_what_is_free():
    enough, short = run_group(_played, [2, 1], 2)
    assert enough == ("", "")
    assert short[0] == "a checkpoint needs 2 MiB, 1 MiB are free in /there"
    assert short[1].startswith(
        "a checkpoint is copied to host memory first, which takes 2 MiB on"
        f" {socket.gethostname()}, where 1 MiB are available: choose"
    )


def test_the_machine_says_what_is_free(tmp_path: Path):
    room: Any = checkpoint_room
    assert room._free_bytes(tmp_path / "to be made" / "checkpoints") > 0
