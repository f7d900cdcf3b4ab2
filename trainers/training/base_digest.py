"""A digest of the frozen weights beside adapters: a number for each tensor, independent of how ranks divide it."""

import hashlib
import json
import math
from collections.abc import Mapping

import torch
import torch.distributed as dist

from trainers.distributed.state import FROZEN, StateTensor, TensorPart
from trainers.measuring.sketch import PIECE_VALUES, places_of

_INTEGERS = {4: torch.int32, 2: torch.int16, 1: torch.int8}


def base_digest(state: Mapping[str, StateTensor]) -> str:
    """Returns 16 hex digits that depend on every bit of the frozen weights; "" if all weights train.

    A collective if there is a process group. Each value's bits are multiplied by a hash of its index and summed as
    wrapping integers, so that the order does not matter.
    """
    frozen = {key: state[key] for key in sorted(state) if key.startswith(f"{FROZEN}/")}
    if not frozen:
        return ""
    parts = [part for tensor in frozen.values() for part in tensor.parts]
    sums = torch.zeros(len(frozen), dtype=torch.int64, device=parts[0].tensor.device if parts else None)
    for row, tensor in zip(sums, frozen.values(), strict=True):
        for part in tensor.saved_parts:
            _add(row, tensor.shape, part)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(sums)
    dtypes = sorted({str(part.tensor.dtype) for part in parts})
    facts = [
        [name, list(tensor.shape), number] for (name, tensor), number in zip(frozen.items(), sums.tolist(), strict=True)
    ]
    return hashlib.sha256(json.dumps([dtypes, facts]).encode()).hexdigest()[:16]


def _add(row: torch.Tensor, shape: tuple[int, ...], part: TensorPart) -> None:
    """Adds the values of one part of a tensor to the tensor's number."""
    step = max(1, PIECE_VALUES // max(1, math.prod(part.tensor.shape[1:])))
    for first in range(0, part.tensor.shape[0], step):
        piece = part.tensor[first : first + step].contiguous()
        bits = piece.view(_INTEGERS[piece.element_size()]).flatten().to(torch.int64)
        hashed = places_of(shape, (part.offsets[0] + first, *part.offsets[1:]), piece.shape, piece.device)
        hashed = (hashed + 1) * 0x2545F4914F6CDD1D
        row += (bits * ((hashed ^ (hashed >> 29)) | 1)).sum()
