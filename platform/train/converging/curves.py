"""The loss curves of one training as values, and points on them. Pure functions."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from trainers.records.training import Record, Steps, Validated
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import Reader, without_redone


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """The losses of one training, by tokens and by hours of training without start-up times."""

    tokens: tuple[float, ...]
    hours: tuple[float, ...]
    losses: tuple[float, ...]
    """Training loss after each step."""
    val_tokens: tuple[float, ...]
    val_hours: tuple[float, ...]
    val_losses: tuple[float, ...]
    """Held-out losses; the first one is measured before any step."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens[-1] / (self.hours[-1] * 3600)

    @property
    def has_learned(self) -> bool:
        """Whether every loss is finite and the last held-out loss is below the first."""
        finite = all(map(math.isfinite, (*self.losses, *self.val_losses)))
        return finite and len(self.val_losses) > 1 and self.val_losses[-1] < self.val_losses[0]


def read_curves(folder: Path) -> Curves:
    return curves_of(without_redone(Reader(folder / RECORDS).read()))


def curves_of(records: Sequence[Record]) -> Curves:
    steps = [record for record in records if isinstance(record, Steps)]
    validated = [record for record in records if isinstance(record, Validated)]
    tokens, hours, losses = list[float](), list[float](), list[float]()
    for step in steps:
        number = len(step.losses)
        for place, loss in enumerate(step.losses):
            behind = number - 1 - place
            tokens.append(float(step.tokens - behind * step.tokens_per_step))
            hours.append((step.train_s - behind * step.steps_s / number) / 3600)
            losses.append(loss)
    return Curves(
        tokens=tuple(tokens),
        hours=tuple(hours),
        losses=tuple(losses),
        val_tokens=tuple(float(validation.tokens) for validation in validated),
        val_hours=tuple(validation.train_s / 3600 for validation in validated),
        val_losses=tuple(validation.loss for validation in validated),
    )


def loss_at(xs: Sequence[float], losses: Sequence[float], x: float) -> float | None:
    """Returns the loss at `x` by linear interpolation; None outside of the curve."""
    for (x0, y0), (x1, y1) in itertools.pairwise(zip(xs, losses, strict=True)):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None


def reached_at(xs: Sequence[float], losses: Sequence[float], target: float) -> float | None:
    """Returns the first x, by linear interpolation, at which the loss is `target` or less; None if it never is."""
    if losses and losses[0] <= target:
        return xs[0]
    for (x0, y0), (x1, y1) in itertools.pairwise(zip(xs, losses, strict=True)):
        if y1 <= target:
            return x0 + (x1 - x0) * (y0 - target) / (y0 - y1) if y0 > y1 else x1
    return None
