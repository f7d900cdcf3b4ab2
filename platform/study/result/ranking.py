"""Ranks a recipe's points and states the certainty of the ranking from runs in separate processes."""

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
"""Two points are tied only if the interval of their ratio is narrower than this."""

MOST_RUNS = 99
"""Largest stated number of runs that would resolve a comparison."""

DISTURBED = 0.10
"""Share by which runs in separate processes may differ from the search's figure on a quiet machine."""

Resolution = Literal["faster", "tie", "not resolved"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointRuns:
    """One batch point with all its runs."""

    search: Measurement | None
    """The search's own run; None if it has none."""
    runs: tuple[Measurement, ...]
    """The confirmation runs in separate processes, by number."""
    paces: Paces = dataclasses.field(default_factory=lambda: UNKNOWN, compare=False, repr=False)
    """Paces of nodes, by which runs are corrected before they are compared."""

    @property
    def decisive(self) -> tuple[Measurement, ...]:
        """The runs that decide: the confirmation runs if any, else the search's."""
        return self.runs or ((self.search,) if self.search else ())

    @functools.cached_property
    def speeds(self) -> tuple[float, ...]:
        """Tokens/s of the decisive runs; empty if one of them is not `ok`, in which case the point cannot win."""
        runs = self.decisive
        if any(run.outcome is not Outcome.OK or not math.isfinite(speed_of(run)) for run in runs):
            return ()
        return tuple(speed_of(run) for run in runs)

    @property
    def median_tokens_per_s(self) -> float | None:
        """Median over the decisive runs; for an even number, the lower of the middle two."""
        return statistics.median_low(self.speeds) if self.speeds else None

    @property
    def std_tokens_per_s(self) -> float | None:
        return statistics.stdev(self.speeds) if len(self.speeds) > 1 else None

    @property
    def interval_tokens_per_s(self) -> tuple[float, float] | None:
        return interval(self.speeds) if len(self.speeds) > 1 else None

    @property
    def search_tokens_per_s(self) -> float:
        """The search's figure; without one, the median of the runs."""
        return speed_of(self.search) if self.search else self.median_tokens_per_s or -math.inf

    def derived(self, run: Measurement) -> float:
        """Returns the tokens/s of a run corrected to nodes of the median pace; minus infinity if it has none."""
        return speed_of(run) / pace_of(run, self.paces)

    @property
    def derived_tokens_per_s(self) -> float:
        """`search_tokens_per_s` corrected to nodes of the median pace."""
        return self.derived(self.search) if self.search else self.derived_median or -math.inf

    @functools.cached_property
    def derived_speeds(self) -> tuple[float, ...]:
        """`speeds` corrected to nodes of the median pace."""
        return tuple(map(self.derived, self.decisive)) if self.speeds else ()

    @property
    def derived_median(self) -> float | None:
        """`median_tokens_per_s` corrected to nodes of the median pace."""
        return statistics.median_low(self.derived_speeds) if self.derived_speeds else None

    @property
    def disturbed(self) -> bool:
        """Whether the machine was disturbed: runs and search, corrected, differ by more than `search_margin`."""
        median = self.derived_median
        if self.search is None or not self.runs or median is None or not self.derived_tokens_per_s > 0:
            return False
        return abs(median / self.derived_tokens_per_s - 1) > self.search_margin

    @property
    def search_margin(self) -> float:
        """Share by which runs may differ from the search's figure on a quiet machine: `DISTURBED`, or half of the
        search's relative 95 % interval over windows if that is wider.
        """
        windows_s = self.search.windows_s if self.search else ()
        low_s, high_s = interval(windows_s) if len(windows_s) > 1 else (0.0, 0.0)
        return max(DISTURBED, (high_s - low_s) / (low_s + high_s) if low_s + high_s else 0.0)

    @property
    def all(self) -> tuple[Measurement, ...]:
        return (*((self.search,) if self.search else ()), *self.runs)

    def beside(self, other: "PointRuns") -> "Comparison":
        """Returns the comparison with a point of another recipe or study; `RecipeResult.beside` has those of one."""
        return compared(self, other)

    @property
    def main_run(self) -> Measurement:
        """The run shown for the point: among the decisive runs with the longest accumulation, the one of median speed.

        If that run's speed differs from the point's median by more than `DISTURBED`, the run of median speed is shown.
        """
        if len(self.decisive) == 1:
            return self.decisive[0]
        longest = max(run.measured_grad_accum for run in self.decisive)
        runs = [run for run in self.decisive if run.measured_grad_accum == longest]
        middle = statistics.median_low(speed_of(run) for run in runs)
        median = self.median_tokens_per_s
        if median is not None and abs(middle / median - 1) > DISTURBED:
            return next(run for run in self.decisive if speed_of(run) == median)
        return next(run for run in runs if speed_of(run) == middle)

    @property
    def representative(self) -> Measurement:
        """The run shown where each point appears once: the last failed run, else `main_run`."""
        failed = [run for run in self.decisive if run.outcome is not Outcome.OK]
        return failed[-1] if failed else self.main_run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The best point compared with another over the runs that both have."""

    other: Measurement
    num_pairs: int
    """Number of paired runs."""
    ratio: float
    """Throughput of the best point over the other's: geometric mean over pairs, or ratio of medians without a pair."""
    low: float
    high: float
    """Upper end of the ratio's 95 % interval (Student's t over logarithms); infinite for fewer than two pairs."""
    resolution: Resolution
    runs_to_resolve: int | None
    """Estimated number of runs of each point after which one is faster or the two are tied, from the pairs' spread;
    None for fewer than two pairs.
    """

    @property
    def sentence(self) -> str:
        match self.resolution:
            case "faster":
                return f"Faster than {self.name}: {self.interval_words}."
            case "tie":
                return f"Tied with {self.name}: {self.interval_words}."
            case "not resolved":
                return f"Not resolved {self.open_words}."

    @property
    def name(self) -> str:
        return f"{self.other.layout.label}, micro-batch {self.other.batch.micro_batch}"

    @property
    def interval_words(self) -> str:
        return f"{self.ratio - 1:+.1%} against it, {ratio_interval(self.low, self.high)}"

    @property
    def open_words(self) -> str:
        """The unresolved comparison and the number of runs that would resolve it, as text."""
        if self.runs_to_resolve is None:
            beside = "one run of each" if self.num_pairs else "no runs of both"
            return f"against {self.name}: {beside} in fresh processes, and it takes two at least (--repeats 2)"
        return f"against {self.name}: {self.interval_words}; {runs_words(self.runs_to_resolve)}"


def ratio_interval(low: float, high: float) -> str:
    return f"95 % interval {low - 1:+.1%} to {high - 1:+.1%}"


def runs_words(runs: int) -> str:
    """Returns as text how many runs of each of two points would resolve the comparison."""
    if runs > MOST_RUNS:
        return f"by the spread so far more than {MOST_RUNS} runs of each would be needed to resolve it"
    return f"by the spread so far about {runs} runs of each would resolve it (--repeats {runs})"


def speed_of(measurement: Measurement) -> float:
    """Returns tokens/s; minus infinity if there is no figure."""
    return -math.inf if measurement.tokens_per_s is None else measurement.tokens_per_s


def points(measurements: Iterable[Measurement], paces: Paces = UNKNOWN) -> list[PointRuns]:
    """Returns the points of one recipe with their runs, in order of first appearance."""
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
    """Returns one recipe's points that may win, ordered by their medians alone, the fastest first."""
    able = (point for point in of_recipe if point.speeds)
    return sorted(able, key=lambda point: (-statistics.median_low(point.derived_speeds), _place(point.decisive[0])))


def ranked(measurements: Iterable[Measurement]) -> list[PointRuns]:
    return rank(points(measurements))


def rank(of_recipe: Sequence[PointRuns]) -> list[PointRuns]:
    """Returns the points of one recipe that may win, the fastest first.

    The best of many single figures is biased upwards, and a second run shows by how much. So a point without
    confirmation runs ranks behind those that have them, unless its search figure exceeds all of theirs. Confirmed
    points are ordered by the median over runs with numbers that other points also have. A run that only the leader has
    is a draw that the others lack; it counts only if it is slower than this median by more than `DISTURBED`. Points
    of equal speed are ordered by their names, because the order of their lines is that in which trials happened to end.
    """
    able = [point for point in of_recipe if point.speeds]
    times = Counter(run.repeat for point in able for run in point.runs)
    bar = max((point.derived_tokens_per_s for point in able if point.runs and point.search), default=-math.inf)

    def order(point: PointRuns) -> tuple[bool, float, tuple[str, int]]:
        shared = [point.derived(run) for run in point.runs if times[run.repeat] > 1]
        alone = [point.derived(run) for run in point.runs if times[run.repeat] == 1]
        median = statistics.median_low(shared or point.derived_speeds)
        if shared and alone and statistics.median_low(alone) < (1 - DISTURBED) * median:
            median = statistics.median_low(point.derived_speeds)
        return not point.runs and median <= bar, -median, _place(point.decisive[0])

    return sorted(able, key=order)


def _place(run: Measurement) -> tuple[str, int]:
    """Returns the order of points of equal speed: by layout, then by micro-batch, of which a small one needs less
    memory.
    """
    return run.layout.id, run.batch.micro_batch


def winner(measurements: Iterable[Measurement], paces: Paces = UNKNOWN) -> Measurement | None:
    """Returns the run that represents the best point of one recipe by total tokens/s; None if no point may win.

    A confirmed point is judged by its confirmation runs: all must be `ok`, and their median counts. All figures are
    corrected to nodes of the median pace.
    """
    all_of = tuple(measurements)
    confirmed = {(measurement.layout, measurement.batch) for measurement in all_of if measurement.repeat}
    # Called once per trial with up to ten thousand measurements. Only the fastest unconfirmed point can win, so only it
    # is ranked.
    judged = [
        measurement for measurement in all_of if confirmed and (measurement.layout, measurement.batch) in confirmed
    ]
    fastest, most = None, -math.inf
    for measurement in all_of:
        speed = measurement.tokens_per_s
        if (
            speed is None
            or not (speed := speed / pace_of(measurement, paces)) >= most
            or measurement.outcome is not Outcome.OK
            or not math.isfinite(speed)
            or (fastest is not None and speed == most and _place(measurement) > _place(fastest))
        ):
            continue
        if not confirmed or (measurement.layout, measurement.batch) not in confirmed:
            fastest, most = measurement, speed
    best = next(iter(rank(points([*judged, *([fastest] if fastest else [])], paces))), None)
    return None if best is None else best.main_run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Spread of the logarithms of paired ratios about their mean."""

    deviation: float
    """Standard deviation of one pair's logarithm."""
    degrees: int
    """Degrees of freedom of `deviation`."""


def comparisons(order: Sequence[PointRuns]) -> list[Comparison]:
    """Returns the comparisons of a ranking's best point with the next best and with all confirmed points, in ranking
    order.
    """
    pooled = pooled_spread(order)
    return [compared(order[0], other, of_two=pooled) for other in _compared_with_best(order)]


def pooled_spread(order: Sequence[PointRuns]) -> Spread | None:
    """Returns the spread of a ranking's paired runs, pooled over the comparisons with its best point; None if no
    comparison has two pairs.

    Two pairs estimate their own spread poorly.
    """
    return _pooled([_pair_logs(order[0], other) for other in _compared_with_best(order)])


def _compared_with_best(order: Sequence[PointRuns]) -> list[PointRuns]:
    return [other for place, other in enumerate(order) if place == 1 or (place and other.runs)]


def compared(best: PointRuns, other: PointRuns, *, of_two: Spread | None = None) -> Comparison:
    """Returns the comparison of two points; it is not resolved with fewer than two pairs of runs.

    Runs with the same number form a pair, because they ran one after the other. `of_two` is the spread used for exactly
    two pairs (None: their own).
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
    """Returns the logarithm of the corrected speed ratio for each run number that both points have."""
    best_by, other_by = ({run.repeat: point.derived(run) for run in point.runs} for point in (best, other))
    pairs = [(best_by[number], other_by[number]) for number in sorted(best_by.keys() & other_by.keys())]
    return [math.log(fast / slow) for fast, slow in pairs if min(fast, slow) > 0]


def _pooled(groups: Iterable[Sequence[float]]) -> Spread | None:
    """Returns the pooled standard deviation (one variance for all groups); None if no group has two values."""
    groups = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in groups)
    if not degrees:
        return None
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups)
    return Spread(deviation=math.sqrt(squares / degrees), degrees=degrees)


def _runs_to_resolve(logs: Sequence[float], spread: Spread) -> int:
    """Returns the number of pairs with this spread whose mean's half interval is below the mean's size or narrow enough
    for a tie; `MOST_RUNS` + 1 if more are needed.
    """
    enough = max(abs(statistics.fmean(logs)), TIE_WIDTH / 2)
    elsewhere = spread.degrees - (len(logs) - 1)
    for number in range(2, MOST_RUNS + 1):
        if t_quantile(number - 1 + elsewhere) * spread.deviation / math.sqrt(number) < enough:
            return number
    return MOST_RUNS + 1
