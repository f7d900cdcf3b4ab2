"""The global norm of gradients whose parts lie on several ranks."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainers.distributed.collectives import reduce_in_place


def global_norm(gradients: Iterable[tuple[torch.Tensor, int]], group: Any, device: torch.device) -> torch.Tensor:
    """Returns the norm over the ranks of `group` (None: this rank holds everything), 0-dim fp32 on `device`. Each
    gradient comes with the number of ranks in the group that hold the same one, so that it counts once.
    """
    by_copies: dict[int, list[torch.Tensor]] = {}
    for gradient, copies in gradients:
        by_copies.setdefault(copies, []).append(gradient)
    squares = torch.zeros((), dtype=torch.float32, device=device)
    for copies, gradients_of in by_copies.items():
        squares += nn.utils.get_total_norm(gradients_of).float().square().to(device) / copies
    if group is not None:
        reduce_in_place(squares, group)
    return squares.sqrt()
