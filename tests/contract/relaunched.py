"""`Relaunched`: stands in for CUDA graphs where there is no CUDA device: each replay runs the micro-step's code again.

So the contract holds what DDP does around its graphs: what is captured when, on which tokens, with which divisor, and
which gradients are dropped. That graphs compute the same is shown on a GPU alone
(docs/lab/kernels.csv#graphs-and-heads.3).
"""

from collections.abc import Callable

import torch


class Relaunched:
    """Has the interface of `trainers.engines.ddp_graphs.MicroStepGraphs`."""

    def __init__(self, device: torch.device) -> None:
        self._tokens = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self._micro_steps: dict[bool, Callable[[torch.Tensor], torch.Tensor]] = {}

    @property
    def exchanging(self) -> frozenset[bool]:
        return frozenset(self._micro_steps)

    def forget(self, shape: torch.Size) -> None:
        self._micro_steps.clear()
        self._tokens = self._tokens.new_zeros(shape)

    def capture(self, micro_step: Callable[[torch.Tensor], torch.Tensor], *, exchange: bool) -> None:
        self._micro_steps[exchange] = micro_step

    def replay(self, tokens: torch.Tensor, *, exchange: bool) -> torch.Tensor:
        self._tokens.copy_(tokens)
        return self._micro_steps[exchange](self._tokens)

    def close(self) -> None:
        self._micro_steps.clear()
