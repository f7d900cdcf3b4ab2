"""One optimizer step as an engine runs it: its input, its marks, its result."""

import dataclasses
import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class StepPhase(enum.StrEnum):
    """Parts of an optimizer step, in the order in which they begin."""

    COUNTING = "counting"
    """A forward pass of all micro-batches, whose counts the first backward pass needs."""
    MICRO_STEP = "micro-step"
    """Forward and backward pass of one micro-batch."""
    SCHEDULE = "schedule"
    """All micro-batches of the step, for an engine that interleaves them."""
    OPTIMIZER_STEP = "optimizer step"
    """Clipping, the optimizer, clearing of gradients."""


class Marks(Protocol):
    """Records where a step is. An engine calls it on the host; nothing waits for the device."""

    def begin(self, phase: StepPhase) -> None:
        """Marks that `phase` begins, and that the phase before it, if any, is over."""
        ...


class Unmarked:
    """Marks for callers that time nothing."""

    def begin(self, phase: StepPhase) -> None:
        """Does nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The result of one optimizer step on one rank. Tensors are 0-dim and on the device: reading one waits for the
    step.
    """

    loss_sum: "torch.Tensor"
    """Sum of the loss over `num_tokens` predicted tokens, detached, fp32; 0 on a rank that computes no loss."""
    num_tokens: "torch.Tensor"
    """Predicted tokens in `loss_sum`, int64; 0 on a rank that computes no loss."""
    grad_norm: "torch.Tensor"
    """Global gradient norm before clipping, fp32, the same on every rank."""
    phases: tuple[StepPhase, ...]
    """The phases in the order in which the engine marked them."""
    num_labels: "torch.Tensor | None" = None
    """Tokens of the global batch that have a loss, int64, the same on every rank; None where all have."""
