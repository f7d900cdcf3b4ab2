"""One optimizer step as an engine runs it: its phases, its marks, its result."""

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
    """All micro-batches of the step, in an engine that interleaves them."""
    OPTIMIZER_STEP = "optimizer step"
    """Clipping, the optimizer, clearing of gradients."""


class Marks(Protocol):
    """Records the progress of a step. An engine calls it on the host; it never waits for the device."""

    def begin(self, phase: StepPhase) -> None:
        """Marks that `phase` begins and that the previous one, if any, has ended."""
        ...


class Unmarked:
    """Marks for callers that time nothing."""

    def begin(self, phase: StepPhase) -> None:
        """Does nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The result of an optimizer step on one rank. Tensors are 0-dim on the device; reading one waits for the step."""

    loss_sum: "torch.Tensor"
    """Sum of the loss over `num_tokens` predicted tokens, detached, fp32; 0 on a rank that computes no loss."""
    num_tokens: "torch.Tensor"
    """Number of predicted tokens in `loss_sum`, int64; 0 on a rank that computes no loss."""
    grad_norm: "torch.Tensor"
    """Global gradient norm before clipping, fp32, equal on every rank."""
    phases: tuple[StepPhase, ...]
    """The phases in the order in which the engine marked them."""
    num_labels: "torch.Tensor | None" = None
    """Number of tokens of the global batch with a loss, int64, equal on every rank; None if all tokens have one."""
