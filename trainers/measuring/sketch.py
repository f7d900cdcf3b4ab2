"""Count-sketches of an engine's tensors, to compare the tensors of two layouts without storing or sending them whole.

Each value of a tensor is added, with a sign, to one of `BUCKETS` sums; sign and bucket follow from its index in the
canonical tensor. So sketches of a tensor's parts on several ranks add up to the whole tensor's sketch, sketches are
linear, and a sketch's squared length estimates the tensor's (Charikar et al., "Finding frequent items in data streams",
2002). The sums are folded to `KEPT` for the journal, which gives the difference of two tensors to within about 6 %.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from trainers.distributed.state import StateTensor, TensorPart

BUCKETS = 4096
KEPT = 128
PIECE_VALUES = 2**21
"""Number of values sketched at a time; indices, signs and hashes for them take about 150 MB."""


def sketches(
    names: Sequence[str],
    states: Sequence[Mapping[str, StateTensor]],
    combine: Callable[..., torch.Tensor],
    device: torch.device,
) -> torch.Tensor:
    """Returns the sketch of `combine(*tensors)` for each name, fp64 [names, KEPT + 1] on the host; the last column is
    the exact sum of squares.

    `states` hold tensors by name, all divided alike; a rank may lack some names. `combine` works elementwise. A
    collective.
    """
    rows = [torch.zeros(KEPT + 1, dtype=torch.float64, device=device) for _ in names]
    for seed, (name, row) in enumerate(zip(names, rows, strict=True)):
        held = [state[name] for state in states if name in state]
        for parts in zip(*(tensor.saved_parts for tensor in held), strict=True):
            _add(row, held[0].shape, parts, combine, seed)
    total = torch.stack(rows)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(total)
    return total.cpu()


def _add(
    row: torch.Tensor,
    shape: Sequence[int],
    parts: Sequence[TensorPart],
    combine: Callable[..., torch.Tensor],
    seed: int,
) -> None:
    """Adds the values of one part of a tensor to the tensor's row."""
    sizes, offsets = parts[0].tensor.shape, parts[0].offsets
    inner = math.prod(sizes[1:])
    step = max(1, PIECE_VALUES // max(1, inner))
    for first in range(0, sizes[0], step):
        pieces = [part.tensor[first : first + step].to(row.device).double() for part in parts]
        values = combine(*pieces).flatten()
        places = places_of(shape, (offsets[0] + first, *offsets[1:]), pieces[0].shape, row.device)
        # Two rounds of a multiplicative hash; overflow is intended.
        hashed = (places + 0x9E3779B9 * (seed + 1)) * 0x2545F4914F6CDD1D
        hashed = (hashed ^ (hashed >> 32)) * 0x1B873593CC9E2D51
        signed = torch.where((hashed >> 50) & 1 == 0, values, -values)
        sums = torch.bincount((hashed >> 24) & (BUCKETS - 1), weights=signed, minlength=BUCKETS)
        row[:KEPT] += sums.view(-1, KEPT).sum(0)
        row[KEPT] += values.square().sum()


def places_of(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """Returns the row-major indices of a part's values in the whole tensor, int64 [values]."""
    places = torch.zeros((), dtype=torch.int64, device=device)
    for length, offset, size in zip(shape, offsets, sizes, strict=True):
        places = places[..., None] * length + torch.arange(offset, offset + size, device=device)
    return places.flatten()


def length(sketch: torch.Tensor) -> torch.Tensor:
    """Returns the estimated lengths of the tensors of sketches [..., KEPT + 1]."""
    return sketch[..., :KEPT].norm(dim=-1)
