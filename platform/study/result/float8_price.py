"""Compares a recipe in FP8 with the same recipe in bf16: ratio of speeds and change of loss."""

import dataclasses
import math
import statistics
from collections.abc import Collection, Sequence

from platform.common.text import figure
from platform.study.result.ranking import Comparison
from trainers.records.journal import GateCurves
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Float8Price:
    """The FP8 winner compared with the bf16 winner; a figure that was not measured is None."""

    precision: str
    speed_ratio: float | None
    """Tokens/s of the FP8 winner over tokens/s of the bf16 winner."""
    speed_interval: tuple[float, float] | None = None
    """95 % interval of the ratio over paired runs; None for fewer than two pairs."""
    steps: int = 0
    """Numerics-gate steps over which losses are compared; 0 if one of the recipes has no gate curve."""
    sequences: int = 0
    mean_loss_change: float | None = None
    """Mean relative change of loss over the gate's steps; positive if FP8's loss is higher."""
    last_loss_change: float | None = None
    """Relative change of loss at the gate's last step; positive if FP8's loss is higher."""

    @property
    def sentence(self) -> str:
        return f"{self.precision} beside bf16: {self._speed}; {self._loss}."

    @property
    def _speed(self) -> str:
        if self.speed_ratio is None:
            return "no two winners to compare in speed"
        low, high = self.speed_interval or (0.0, math.inf)
        times = f"{figure(self.speed_ratio)} times bf16's tokens/s"
        if low <= 1 <= high:
            return f"{times}, which is not resolved by paired runs"
        times += f" (95 % interval {figure(low)} to {figure(high)})"
        return times if low > 1 else f"slower, {times}, so that bf16 is the better recipe here"

    @property
    def _loss(self) -> str:
        if self.mean_loss_change is None or self.last_loss_change is None:
            return "what it costs in loss is not known, since one of the two has no curve of the numerics gate"
        return (
            f"over the numerics gate's {self.steps} steps of {self.sequences} sequences its loss differs by"
            f" {100 * self.mean_loss_change:+.2g} % in the mean and"
            f" {100 * self.last_loss_change:+.2g} % at the last step"
        )


def in_bf16(recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, compute_precision="bf16")


def compared(recipes: Collection[Recipe]) -> frozenset[Recipe]:
    """Returns the FP8 recipes that are searched together with their bf16 counterpart, and these counterparts."""
    pairs = [{recipe, in_bf16(recipe)} for recipe in recipes if recipe.float8_scaling and in_bf16(recipe) in recipes]
    return frozenset[Recipe]().union(*pairs)


def price_of(recipe: Recipe, speed: Comparison | None, gates: Sequence[GateCurves]) -> Float8Price:
    """Returns the price of an FP8 recipe. `speed` compares its winner with the bf16 winner.

    Losses come from the winner's curves in `gates` if present, else from the reference's.
    """
    price = Float8Price(
        precision=recipe.compute_precision,
        speed_ratio=speed and speed.ratio,
        speed_interval=(speed.low, speed.high) if speed and speed.num_pairs > 1 else None,
    )
    for curves in _curves(recipe, gates):
        for bf16_curves in _curves(in_bf16(recipe), gates):
            if (curves.steps, curves.sequences) == (bf16_curves.steps, bf16_curves.sequences) and all(
                map(bool, bf16_curves.losses)
            ):
                changes = [
                    loss / bf16_loss - 1 for loss, bf16_loss in zip(curves.losses, bf16_curves.losses, strict=True)
                ]
                return dataclasses.replace(
                    price,
                    steps=curves.steps,
                    sequences=curves.sequences,
                    mean_loss_change=statistics.fmean(changes),
                    last_loss_change=changes[-1],
                )
    return price


def _curves(recipe: Recipe, gates: Sequence[GateCurves]) -> list[GateCurves]:
    return sorted((gate for gate in reversed(gates) if gate.recipe == recipe), key=lambda curves: curves.is_reference)
