"""Compares trainings at equal tokens, at equal time and by their cost to the same loss. Pure functions.

The target loss is the highest of the last held-out losses, because every training has reached it.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from platform.common.text import count, duration, figure, plural
from platform.train.converging.curves import Curves, loss_at, reached_at
from trainers.measuring.intervals import interval

_CLOSE = 0.005
"""Sentences say "as many" and "as soon" if a ratio differs from 1 by less than this."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoints:
    """Points on one training's curves; None beyond a curve's end."""

    tokens_per_s: float
    tokens_to_loss: float | None
    hours_to_loss: float | None
    loss_at_equal_tokens: float | None
    loss_at_equal_hours: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One strategy's figure over the first's: geometric mean over seeds, with a 95 % interval (None for one seed)."""

    middle: float
    interval: tuple[float, float] | None = None

    @property
    def is_one(self) -> bool:
        """Whether the ratio is close to 1 and its interval, if any, includes 1."""
        return abs(self.middle - 1) < _CLOSE and (self.interval is None or self.interval[0] <= 1 <= self.interval[1])

    @property
    def inverse(self) -> "Ratio":
        ends = self.interval and (1 / self.interval[1], 1 / self.interval[0])
        return Ratio(middle=1 / self.middle, interval=ends)

    @property
    def ends(self) -> str:
        """The interval as text, such as " (2.95 to 3.26)"; "" without one."""
        return "" if self.interval is None else f" ({self.interval[0]:.2f} to {self.interval[1]:.2f})"

    def of(self, unit: str) -> str:
        """Returns the ratio as text with its unit, such as "3.10 times the tokens/s (2.95 to 3.26)"."""
        return f"{'as many' if self.is_one else f'{self.middle:.2f} times the'} {unit}{self.ends}"

    @property
    def sooner(self) -> str:
        """A ratio of times as text, such as "2.20 times sooner (2.01 to 2.40)"."""
        if self.is_one:
            return f"as soon{self.ends}"
        is_open = self.interval is not None and self.interval[0] <= 1 <= self.interval[1]
        unsure = ", which the seeds do not resolve" if is_open else ""
        if self.middle < 1:
            return f"{1 / self.middle:.2f} times sooner{self.inverse.ends}{unsure}"
        return f"{self.middle:.2f} times later{self.ends}{unsure}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StrategyVerdict:
    """All trainings compared, by strategy and seed."""

    target_loss: float | None
    equal_tokens: float
    equal_hours: float
    marks: Mapping[str, Mapping[int, CurvePoints]]
    """Points of the trainings that learned, by strategy and seed."""
    left_out: Mapping[str, str]
    """The reason why a strategy is not compared, by its name."""

    def spread(self, name: str) -> float | None:
        """Returns the standard deviation over seeds of the strategy's loss at equal tokens; None for a single seed."""
        losses = [mark.loss_at_equal_tokens for mark in self.marks[name].values()]
        reached = [loss for loss in losses if loss is not None]
        return statistics.stdev(reached) if len(reached) > 1 else None

    def ratio(self, name: str, figure_of: Callable[[CurvePoints], float | None]) -> Ratio | None:
        """Returns the strategy's figure over the first strategy's, paired by seed; None without a pair."""
        first = next(iter(self.marks.values()))
        pairs = [(figure_of(mark), figure_of(first[seed])) for seed, mark in self.marks[name].items() if seed in first]
        logs = [math.log(a / b) for a, b in pairs if a and b]
        if not logs:
            return None
        ends = interval(logs) if len(logs) > 1 else None
        return Ratio(
            middle=math.exp(statistics.fmean(logs)),
            interval=None if ends is None else (math.exp(ends[0]), math.exp(ends[1])),
        )


def compare(trainings: Mapping[str, Mapping[int, Curves]], tokens: float) -> StrategyVerdict:
    """Returns the comparison of trainings (strategy -> seed -> curves) of about `tokens` tokens each."""
    learned = {
        name: curves_by_seed
        for name, curves_by_seed in trainings.items()
        if curves_by_seed and all(curves.has_learned for curves in curves_by_seed.values())
    }
    left_out = {
        name: "it did not learn: its loss is not finite, or no lower than at the beginning"
        for name in trainings
        if name not in learned
    }
    of_all = [curves for curves_by_seed in learned.values() for curves in curves_by_seed.values()]
    if not of_all:
        return StrategyVerdict(target_loss=None, equal_tokens=tokens, equal_hours=0.0, marks={}, left_out=left_out)
    target = max(curves.val_losses[-1] for curves in of_all)
    equal_tokens = min(tokens, *(curves.val_tokens[-1] for curves in of_all))
    equal_hours = min(curves.val_hours[-1] for curves in of_all)

    def marks(curves: Curves) -> CurvePoints:
        return CurvePoints(
            tokens_per_s=curves.tokens_per_s,
            tokens_to_loss=reached_at(curves.val_tokens, curves.val_losses, target),
            hours_to_loss=reached_at(curves.val_hours, curves.val_losses, target),
            loss_at_equal_tokens=loss_at(curves.val_tokens, curves.val_losses, equal_tokens),
            loss_at_equal_hours=loss_at(curves.val_hours, curves.val_losses, equal_hours),
        )

    return StrategyVerdict(
        target_loss=target,
        equal_tokens=equal_tokens,
        equal_hours=equal_hours,
        marks={
            name: {seed: marks(curves) for seed, curves in curves_by_seed.items()}
            for name, curves_by_seed in learned.items()
        },
        left_out=left_out,
    )


def sentences(verdict: StrategyVerdict) -> list[str]:
    """Returns sentences on the basis of the comparison, each strategy beside the first, and each strategy's losses."""
    lines = [f"{name} is left out: {reason}." for name, reason in verdict.left_out.items()]
    if verdict.target_loss is None or not verdict.marks:
        return [*lines, "There is nothing to compare."]
    names = list(verdict.marks)
    seeds = max(len(mark_by_seed) for mark_by_seed in verdict.marks.values())
    basis = f"95 % intervals over {seeds} seeds" if seeds > 1 else "one seed, without an interval: --seeds 3 gives one"
    if others := names[1:]:
        target = f"the held-out loss {verdict.target_loss:.3f} that all trainings reached"
        lines.append(f"Beside {names[0]}, until {target} ({basis}):")
        lines += [_compared(verdict, name) for name in others]
    equal = f"{count(verdict.equal_tokens)} tokens", duration(verdict.equal_hours * 3600)
    lines.append(f"Held-out loss at equal tokens ({equal[0]}) and at equal time ({equal[1]}):")
    lines += [_sentence_on(verdict, name) for name in names]
    return lines


def _compared(verdict: StrategyVerdict, name: str) -> str:
    speed = verdict.ratio(name, lambda mark: mark.tokens_per_s)
    tokens = verdict.ratio(name, lambda mark: mark.tokens_to_loss)
    hours = verdict.ratio(name, lambda mark: mark.hours_to_loss)
    if speed is None or tokens is None or hours is None:
        return f"{name}: reached that loss before its first step was timed."
    return (
        f"{name}: {speed.of('tokens/s')}, {tokens.of(f'tokens to loss {verdict.target_loss:.3f}')}, so {hours.sooner}."
    )


def _sentence_on(verdict: StrategyVerdict, name: str) -> str:
    marks = verdict.marks[name].values()
    tokens = [mark.loss_at_equal_tokens for mark in marks if mark.loss_at_equal_tokens is not None]
    hours = [mark.loss_at_equal_hours for mark in marks if mark.loss_at_equal_hours is not None]
    spread = verdict.spread(name)
    spread_text = "" if spread is None else f", standard deviation {figure(spread)} over {plural(len(tokens), 'seed')}"
    at_tokens, at_hours = (f"{statistics.fmean(losses):.3f}" if losses else "not reached" for losses in (tokens, hours))
    return f"{name}: {at_tokens} and {at_hours}{spread_text}."


def best_by_time(verdict: StrategyVerdict) -> str | None:
    """Returns the strategy with the fewest hours to the target loss, averaged over seeds; None if none is known."""
    means = {
        name: statistics.fmean(hours)
        for name, mark_by_seed in verdict.marks.items()
        if (hours := [mark.hours_to_loss for mark in mark_by_seed.values() if mark.hours_to_loss is not None])
    }
    return min(means, key=lambda name: means[name], default=None)


def mean_curve(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[list[float], list[float]]:
    """Returns the mean of curves over seeds, at those points of the first that all curves reach."""
    xs, _ = curves[0]
    ys_at = [(x, [loss_at(*curve, x) for curve in curves]) for x in xs]
    complete = [(x, [y for y in ys if y is not None]) for x, ys in ys_at if None not in ys]
    return [x for x, _ in complete], [statistics.fmean(ys) for _, ys in complete]
