"""Times two things in turn, A B B A A B ..., and returns the 95 % interval of their ratio over pairs."""

import dataclasses
import math
import statistics
from collections.abc import Callable

from trainers.measuring.intervals import interval


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """The first time over the second."""

    first_s: tuple[float, ...]
    second_s: tuple[float, ...]

    @property
    def logs(self) -> list[float]:
        """Logarithms of the ratio, one for each pair."""
        return [math.log(first / second) for first, second in zip(self.first_s, self.second_s, strict=True)]

    def __str__(self) -> str:
        low, high = (math.exp(end) for end in interval(self.logs))
        return (
            f"{statistics.median(self.first_s) * 1e3:9.2f} ms  {statistics.median(self.second_s) * 1e3:9.2f} ms  ratio"
            f" {math.exp(statistics.fmean(self.logs)):.4f}  95 % interval {low:.4f} to {high:.4f}"
            f"  ({len(self.logs)} pairs)"
        )


def alternate(first: Callable[[], float], second: Callable[[], float], pairs: int) -> Ratio:
    """Returns the seconds of both, `pairs` times each, in an order that reverses at every pair so that a drift affects
    both.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times[side].append((first, second)[side]())
    return Ratio(first_s=tuple(times[0]), second_s=tuple(times[1]))
