"""Ranks a recipe's points and states how certain that is, by runs in separate processes where there are any."""

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from platform.study.node_paces import UNKNOWN, Paces, pace_of
from trainers.measuring.intervals import interval, t_quantile
from trainers.records.measurement import Measurement, Outcome

TIE_WIDTH = 0.03
"""Two points are tied only where the interval of their ratio is narrower than this."""

MOST_RUNS = 99
"""Number of runs up to which it is said how many would resolve a comparison."""

DISTURBED = 0.10
"""Share by which runs in separate processes may differ from the search's figure on a quiet machine."""

Resolution = Literal["faster", "tie", "not resolved"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointRuns:
    """One batch point with all its runs."""

    search: Measurement | None
    """The search's own run."""
    runs: tuple[Measurement, ...]
    """The runs in separate processes, by number."""
    paces: Paces = dataclasses.field(default_factory=lambda: UNKNOWN, compare=False, repr=False)
    """The paces of nodes, through which its runs are compared with each other and with those of other points."""

    @property
    def decisive(self) -> tuple[Measurement, ...]:
        """The runs that the point is judged by: separate ones, the search's where there are none."""
        return self.runs or ((self.search,) if self.search else ())

    @functools.cached_property
    def speeds(self) -> tuple[float, ...]:
        """Tokens/s of the decisive runs; empty where one of them is not `ok`, so that the point cannot win."""
        runs = self.decisive
        if any(run.outcome is not Outcome.OK or not math.isfinite(speed_of(run)) for run in runs):
            return ()
        return tuple(speed_of(run) for run in runs)

    @property
    def median_tokens_per_s(self) -> float | None:
        """Median over the decisive runs; of an even number, the lower of the two in the middle."""
        return statistics.median_low(self.speeds) if self.speeds else None

    @property
    def std_tokens_per_s(self) -> float | None:
        """Standard deviation over runs; None for fewer than two."""
        return statistics.stdev(self.speeds) if len(self.speeds) > 1 else None

    @property
    def interval_tokens_per_s(self) -> tuple[float, float] | None:
        """95 % interval of the mean over runs; None for fewer than two."""
        return interval(self.speeds) if len(self.speeds) > 1 else None

    @property
    def search_tokens_per_s(self) -> float:
        """The search's own figure; the median of the runs where there is none."""
        return speed_of(self.search) if self.search else self.median_tokens_per_s or -math.inf

    def derived(self, run: Measurement) -> float:
        """Returns the tokens/s of a run as nodes of the middle pace would have shown them; minus infinity for none."""
        return speed_of(run) / pace_of(run, self.paces)

    @property
    def derived_tokens_per_s(self) -> float:
        """`search_tokens_per_s` as nodes of the middle pace would have shown it."""
        return self.derived(self.search) if self.search else self.derived_median or -math.inf

    @functools.cached_property
    def derived_speeds(self) -> tuple[float, ...]:
        """`speeds` as nodes of the middle pace would have shown them."""
        return tuple(map(self.derived, self.decisive)) if self.speeds else ()

    @property
    def derived_median(self) -> float | None:
        """`median_tokens_per_s` as nodes of the middle pace would have shown it."""
        return statistics.median_low(self.derived_speeds) if self.derived_speeds else None

    @property
    def disturbed(self) -> bool:
        """Whether the machine was disturbed in the search or in the runs: their median differs from the search's figure
        by more than its interval over windows and by more than 10 %, beside what the nodes' paces explain.
        """
        median = self.derived_median
        if self.search is None or not self.runs or median is None or not self.derived_tokens_per_s > 0:
            return False
        return abs(median / self.derived_tokens_per_s - 1) > self.search_margin

    @property
    def search_margin(self) -> float:
        """Share by which others may differ from the search's figure on a quiet machine: 10 %, or half of its 95 %
        interval over windows where that is wider.
        """
        windows_s = self.search.windows_s if self.search else ()
        low_s, high_s = interval(windows_s) if len(windows_s) > 1 else (0.0, 0.0)
        return max(DISTURBED, (high_s - low_s) / (low_s + high_s) if low_s + high_s else 0.0)

    @property
    def all(self) -> tuple[Measurement, ...]:
        """The search's run, and the later ones."""
        return (*((self.search,) if self.search else ()), *self.runs)

    def beside(self, other: "PointRuns") -> "Comparison":
        """Returns this point compared with another one by runs beside each other."""
        return compared(self, other)

    @property
    def typical(self) -> Measurement:
        """The run of median speed; where a run failed, that one."""
        if len(self.decisive) == 1:
            return self.decisive[0]
        lost_runs = [run for run in self.decisive if run.outcome is not Outcome.OK]
        if lost_runs:
            return lost_runs[-1]
        middle = statistics.median_low(speed_of(run) for run in self.decisive)
        return next(run for run in self.decisive if speed_of(run) == middle)

    @property
    def main_run(self) -> Measurement:
        """The run that stands for the point: the one of longest accumulation, the middle one among equals; the one of
        median speed where the longest differs from it by more than on a quiet machine.
        """
        if len(self.decisive) == 1:
            return self.decisive[0]
        longest = max(run.measured_grad_accum for run in self.decisive)
        runs = [run for run in self.decisive if run.measured_grad_accum == longest]
        middle = statistics.median_low(speed_of(run) for run in runs)
        median = self.median_tokens_per_s
        if median is not None and abs(middle / median - 1) > DISTURBED:
            return self.typical
        return next(run for run in runs if speed_of(run) == middle)

    @property
    def representative(self) -> Measurement:
        """The run that stands for the point where each point is shown once; where runs failed, the last that did."""
        failed = [run for run in self.decisive if run.outcome is not Outcome.OK]
        return failed[-1] if failed else self.main_run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The best point compared with another one, over the runs that both have."""

    other: Measurement
    num_pairs: int
    """Number of pairs of runs."""
    ratio: float
    """Throughput of the best point over this one's: the geometric mean over pairs of runs; without a pair, of the two
    medians.
    """
    low: float
    high: float
    """Upper end of the ratio's 95 % interval, by Student's t over the logarithms; infinite for fewer than two pairs."""
    resolution: Resolution
    runs_to_resolve: int | None
    """Number of runs of each, estimated from the spread of the pairs, after which one is faster or the two are tied;
    None for fewer than two pairs.
    """

    @property
    def sentence(self) -> str:
        """The comparison as one sentence."""
        match self.resolution:
            case "faster":
                return f"Faster than {self.name}: {self.interval_words}."
            case "tie":
                return f"Tied with {self.name}: {self.interval_words}."
            case "not resolved":
                return f"Not resolved {self.open_words}."

    @property
    def name(self) -> str:
        """The other point's layout and micro-batch."""
        return f"{self.other.layout.label}, micro-batch {self.other.batch.micro_batch}"

    @property
    def interval_words(self) -> str:
        """The ratio with its interval, in words."""
        return f"{self.ratio - 1:+.1%} against it, {ratio_interval(self.low, self.high)}"

    @property
    def open_words(self) -> str:
        """The open comparison and what would resolve it, in words."""
        if self.runs_to_resolve is None:
            beside = "one run of each" if self.num_pairs else "no runs of both"
            return f"against {self.name}: {beside} in fresh processes, and it takes two at least (--repeats 2)"
        return f"against {self.name}: {self.interval_words}; {runs_words(self.runs_to_resolve)}"


def ratio_interval(low: float, high: float) -> str:
    """Returns the 95 % interval of a ratio of speeds, in words."""
    return f"95 % interval {low - 1:+.1%} to {high - 1:+.1%}"


def runs_words(runs: int) -> str:
    """Returns how many runs of each of two points would resolve which is faster, in words."""
    if runs > MOST_RUNS:
        return f"by the spread so far more than {MOST_RUNS} runs of each would be needed to resolve it"
    return f"by the spread so far about {runs} runs of each would resolve it (--repeats {runs})"


def speed_of(measurement: Measurement) -> float:
    """Returns tokens/s, minus infinity where there is none."""
    return -math.inf if measurement.tokens_per_s is None else measurement.tokens_per_s


def points(measurements: Iterable[Measurement], paces: Paces = UNKNOWN) -> list[PointRuns]:
    """Returns the runs of each batch point of one recipe, in order of first appearance."""
    runs_of_point: dict[tuple[str, int, int], list[Measurement]] = {}
    for measurement in measurements:
        runs_of_point.setdefault(
            (measurement.layout.id, measurement.batch.micro_batch, measurement.batch.grad_accum), []
        ).append(measurement)
    several = list[PointRuns]()
    for runs in runs_of_point.values():
        search = next((run for run in runs if not run.repeat), None)
        later = tuple(sorted((run for run in runs if run.repeat), key=lambda run: run.repeat))
        several.append(PointRuns(search=search, runs=later, paces=paces))
    return several


def by_speed(of_recipe: Iterable[PointRuns]) -> list[PointRuns]:
    """Returns the points that may win, of one recipe's, the fastest first by their medians alone."""
    able = (point for point in of_recipe if point.speeds)
    return sorted(able, key=lambda point: -statistics.median_low(point.derived_speeds))


def ranked(measurements: Iterable[Measurement]) -> list[PointRuns]:
    """Returns the points of one recipe that may win, the fastest first."""
    return rank(points(measurements))


def rank(of_recipe: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns the points that may win, of one recipe's, the fastest first.

    The best of many single figures is biased upwards, and a second run shows by how much. So a point that did not run
    again ranks behind those that did, unless the search measured it faster than each of them. Those that did are
    ordered by the median over the runs that others had as well: a leader's own last run is one more draw that the
    others have not had, and counts only where it is further below than runs differ on a quiet machine.
    """
    able = [point for point in of_recipe if point.speeds]
    times = Counter(run.repeat for point in able for run in point.runs)
    bar = max((point.derived_tokens_per_s for point in able if point.runs and point.search), default=-math.inf)

    def order(point: PointRuns) -> tuple[bool, float]:
        shared = [point.derived(run) for run in point.runs if times[run.repeat] > 1]
        alone = [point.derived(run) for run in point.runs if times[run.repeat] == 1]
        median = statistics.median_low(shared or point.derived_speeds)
        if shared and alone and statistics.median_low(alone) < (1 - DISTURBED) * median:
            median = statistics.median_low(point.derived_speeds)
        return not point.runs and median <= bar, -median

    return sorted(able, key=order)


def winner(measurements: Iterable[Measurement], paces: Paces = UNKNOWN) -> Measurement | None:
    """Returns the best measurement of one recipe by total tokens/s; None where there is none.

    A point that was run again is judged by these runs: it counts only if all of them are `ok`, and by their median.
    Figures are compared as nodes of the middle of `paces` would have shown them.
    """
    all_of = tuple(measurements)
    confirmed = {(measurement.layout, measurement.batch) for measurement in all_of if measurement.repeat}
    # Called once a trial, for up to ten thousand. Of points that were not run again only the fastest can win.
    judged = [
        measurement for measurement in all_of if confirmed and (measurement.layout, measurement.batch) in confirmed
    ]
    fastest, most = None, -math.inf
    for measurement in all_of:
        speed = measurement.tokens_per_s
        if (
            speed is None
            or not (speed := speed / pace_of(measurement, paces)) > most
            or measurement.outcome is not Outcome.OK
            or not math.isfinite(speed)
        ):
            continue
        if not confirmed or (measurement.layout, measurement.batch) not in confirmed:
            fastest, most = measurement, speed
    best = next(iter(rank(points([*judged, *([fastest] if fastest else [])], paces))), None)
    return None if best is None else best.main_run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The spread of logarithms of paired runs' ratios about their mean."""

    deviation: float
    """Standard deviation of one pair."""
    degrees: int
    """Degrees of freedom of `deviation`."""


def comparisons(order: Sequence[PointRuns]) -> list[Comparison]:
    """Compares the best point of a ranking with the next best one and with all that were run again, the next best
    first. Two pairs of runs hardly know their own spread, so theirs is pooled with that of the other comparisons.
    """
    others = [other for place, other in enumerate(order) if place == 1 or (place and other.runs)]
    pooled = _pooled([_pair_logs(order[0], other) for other in others])
    return [compared(order[0], other, of_two=pooled) for other in others]


def compared(best: PointRuns, other: PointRuns, *, of_two: Spread | None = None) -> Comparison:
    """Compares one point with another; not resolved where there are fewer than two pairs of runs. The spread `of_two`
    is that of two pairs, None for their own.

    Runs with the same number form a pair, since they follow each other in time.
    """
    logs = _pair_logs(best, other)
    spread = of_two if of_two and len(logs) == 2 else _pooled([logs])
    low, high = 0.0, math.inf
    if spread is not None:
        mean, half = statistics.fmean(logs), t_quantile(spread.degrees) * spread.deviation / math.sqrt(len(logs))
        low, high = math.exp(mean - half), math.exp(mean + half)
    if low > 1:
        resolution: Resolution = "faster"
    else:
        resolution = "tie" if high - low < TIE_WIDTH and high >= 1 else "not resolved"
    medians = best.derived_median or math.nan, other.derived_median or math.nan
    return Comparison(
        other=other.main_run,
        num_pairs=len(logs),
        ratio=math.exp(statistics.fmean(logs)) if logs else medians[0] / medians[1],
        low=low,
        high=high,
        resolution=resolution,
        runs_to_resolve=_runs_to_resolve(logs, spread) if spread else None,
    )


def _pair_logs(best: PointRuns, other: PointRuns) -> list[float]:
    """Returns the logarithms of the ratios of the runs that both points have."""
    best_by, other_by = ({run.repeat: point.derived(run) for run in point.runs} for point in (best, other))
    pairs = [(best_by[number], other_by[number]) for number in sorted(best_by.keys() & other_by.keys())]
    return [math.log(fast / slow) for fast, slow in pairs if min(fast, slow) > 0]


def _pooled(groups: Iterable[Sequence[float]]) -> Spread | None:
    """Returns the spread of values within groups, taken to be the same in each (the pooled variance); None where no
    group has two.
    """
    groups = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in groups)
    if not degrees:
        return None
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups)
    return Spread(deviation=math.sqrt(squares / degrees), degrees=degrees)


def _runs_to_resolve(logs: Sequence[float], spread: Spread) -> int:
    """Returns the number of pairs like these after which half of the interval of their mean is below the mean, or
    narrow enough for a tie; `MOST_RUNS` + 1 where that is not enough.
    """
    enough = max(abs(statistics.fmean(logs)), TIE_WIDTH / 2)
    elsewhere = spread.degrees - (len(logs) - 1)
    for number in range(2, MOST_RUNS + 1):
        if t_quantile(number - 1 + elsewhere) * spread.deviation / math.sqrt(number) < enough:
            return number
    return MOST_RUNS + 1
