"""Summarises a study: the gain of each axis, the winner's advantage, the search's cost and savings."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from platform.common.text import count, figure
from platform.cost_model.step_time import StepTime
from platform.report.forecast import Forecaster, forecaster_of
from platform.report.lanes import lagging_words, lanes_words
from platform.study.result.ranking import Comparison, PointRuns, ratio_interval
from platform.study.result.result import RecipeResult, StudyResult
from trainers.measuring.intervals import interval, t_quantile
from trainers.records.journal import StudyHeader
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.layout import Layout

DAY_S = 86400.0
PARTS = {
    "compute": ("compute_s",),
    "attention": ("attention_s",),
    "optimizer": ("optimizer_s",),
    "waiting for the host": ("host_s",),
    "communication": ("tensor_s", "exchanges_s", "pipeline_s", "data_s"),
    "pipeline bubbles": ("bubble_s",),
}
"""Parts of a predicted step: name in reports, and fields of `StepTime`."""
NOTED = 0.005
"""Two layouts' parts are reported if they differ by at least this share of a step."""
AXES = (*(field.name for field in dataclasses.fields(Layout)), "micro_batch")


@functools.lru_cache(maxsize=1)  # the terminal and the page of one report show the same
def lessons(result: StudyResult) -> Sequence[str]:
    """Returns sentences for each recipe with a winner, and on the search's cost."""
    header, forecaster = result.header, forecaster_of(result.header)
    winners = [recipe_result for recipe_result, _ in result.winners]
    lanes = [*filter(None, (lanes_words(result.history), lagging_words(result.history)))]
    cost = f"The search cost {figure(result.history.gpu_s / DAY_S)} {header.cluster.device_word}-days"
    lines_of = [[*axes_worth(winner, winner.winner), *reasons_for_winner(winner, forecaster)] for winner in winners]
    if len(winners) == 1:
        saved = (
            "a miniature's answer saves no training time"
            if header.miniature
            else f"over {cost_saving(winners[0], header)}"
        )
        return [*lines_of[0], *lanes, f"{cost}; {saved}."]
    sentences: list[str] = []
    for recipe_result, lines in zip(winners, lines_of, strict=True):
        sentences += [f"Of {recipe_result.recipe.label}:", *lines]
        sentences += [] if header.miniature else [f"Over {cost_saving(recipe_result, header)}."]
    return [*sentences, *lanes, f"{cost}."] if sentences else []


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AxisGain:
    """The speed of one value of an axis over another's, between measurements that differ in nothing else."""

    axis: str
    value: Any
    """The faster value."""
    other: Any
    gain: float
    """Share by which `value` is faster: geometric mean over the pairs."""
    ends: tuple[float, float] | None
    """Ends of the gain's 95 % interval; None for a single pair that is not resolved."""
    num_pairs: int
    differs: bool
    """Whether the 95 % interval excludes equal speeds."""
    words: str
    """Clause on the certainty of the gain, and on the winner's own comparison."""


def axes_worth(result: RecipeResult, winner: Measurement | None) -> list[str]:
    """Returns a sentence for each axis that compares its values between measurements that differ in nothing else.

    The sentence gives the mean ratio of tokens/s over the pairs; the axis with the largest gain comes first. A
    comparison is left out if its 95 % interval includes no difference (over the pairs; for a single pair over both
    measurements' windows). A single pair counts as not resolved unless paired runs confirm it. If a comparison
    contradicts the winner's value, the sentence says how the winner itself compares.
    """
    by_axis: dict[str, list[AxisGain]] = {}
    for compared in axis_gains(result, winner):
        if compared.differs:
            by_axis.setdefault(compared.axis, []).append(compared)
    timed = _timed(result.points)
    of_miniature = " of the miniature" if timed and timed[0].miniature else ""
    ordered = sorted(by_axis.items(), key=lambda item: -max(compared.gain for compared in item[1]))
    return [
        f"{axis.replace('_', '-')}{of_miniature}, all else equal: "
        + "; ".join(f"{pair.value} is {pair.gain:.1%} faster than {pair.other} ({pair.words})" for pair in gains)
        + "."
        for axis, gains in ordered
    ]


def axis_gains(result: RecipeResult, winner: Measurement | None) -> list[AxisGain]:
    """Returns all comparisons of two values of an axis, in the axes' order."""
    timed = _timed(result.points)
    rows = [_axes(measurement) for measurement in timed]
    speed = {row: measurement.tokens_per_s or 0.0 for row, measurement in zip(rows, timed, strict=True)}
    point_of = {point.search.id: point for point in result.points if point.search is not None}
    speeds = np.array([measurement.tokens_per_s or 1.0 for measurement in timed])
    codes = np.array([_codes(values) for values in zip(*rows, strict=True)], dtype=np.int64)
    gains: list[AxisGain] = []
    for place in [place for place in range(len(codes)) if codes[place].any()]:
        for first, second in _pairs(codes, place):
            logs = np.log(speeds[first] / speeds[second])
            differs = _differs(logs, [timed[first[0]], timed[second[0]]])
            value, other = rows[first[0]][place], rows[second[0]][place]
            if logs.mean() < 0:
                value, other, first, second, logs = other, value, second, first, -logs
            sides = point_of[timed[first[0]].id], point_of[timed[second[0]].id]
            gain, ends, certainty = _gain(logs, functools.partial(result.beside, *sides))
            remark = "" if winner is None else _of_winner(_axes(winner), place, value, other, speed)
            gains.append(
                AxisGain(
                    axis=AXES[place],
                    value=value,
                    other=other,
                    gain=gain,
                    ends=ends,
                    num_pairs=len(logs),
                    differs=differs,
                    words=f"{certainty}{remark}",
                )
            )
    return gains


def _timed(points: Sequence[PointRuns]) -> list[Measurement]:
    searches = [point.search for point in points if point.search is not None]
    return [search for search in searches if search.outcome in TIMED and search.tokens_per_s]


Indices = NDArray[np.intp]


def _codes(values: Sequence[Any]) -> list[int]:
    """Returns an integer for each value, numbered by first appearance."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _pairs(codes: NDArray[np.int64], place: int) -> Iterator[tuple[Indices, Indices]]:
    """Yields the measurements that differ only in the axis at `place`, grouped by their two values.

    Each item holds the indices of the first value's measurements and of the second's. `codes` has shape (axes,
    measurements). Measurements are sorted by all other axes, because a study of 10,000 has too many pairs to compare
    each.
    """
    key = np.zeros(codes.shape[1], np.int64)
    for other in [other for other in range(len(codes)) if other != place and codes[other].any()]:
        key = np.unique(key * (codes[other].max() + 1) + codes[other], return_inverse=True)[1]
    _, appeared, group = np.unique(key, return_index=True, return_inverse=True)
    group = appeared[group]
    order = np.argsort(group, kind="stable")
    group, steps = group[order], range(1, int(np.bincount(group).max()))
    starts = [np.flatnonzero(group[:-step] == group[step:]) for step in steps]
    begin = np.concatenate([*starts, np.zeros(0, np.intp)])
    end = np.concatenate([*(start + step for start, step in zip(starts, steps, strict=True)), np.zeros(0, np.intp)])
    by_appearance = np.lexsort((end, begin))
    first, second = order[begin[by_appearance]], order[end[by_appearance]]
    values = np.stack([codes[place][first], codes[place][second]])
    differ = values[0] != values[1]
    first, second, values = first[differ], second[differ], values[:, differ]
    kinds = values.min(axis=0) * (values.max(initial=0) + 1) + values.max(axis=0)
    _, appeared, kind = np.unique(kinds, return_index=True, return_inverse=True)
    for number in np.argsort(appeared):
        of_kind = np.flatnonzero(kind == number)
        is_same = values[0][of_kind] == values[0][of_kind[0]]
        pairs = first[of_kind], second[of_kind]
        yield np.where(is_same, *pairs), np.where(is_same, *pairs[::-1])


def _gain(
    logs: NDArray[np.float64], of_runs: Callable[[], Comparison]
) -> tuple[float, tuple[float, float] | None, str]:
    """Returns the gain of the first measurements, the ends of its 95 % interval, and both as text.

    `logs` are logarithms of the pairs' ratios. A single pair is judged by the comparison `of_runs` of its points.
    """
    gain = math.exp(float(logs.mean())) - 1
    if len(logs) > 1:
        low, high = map(math.exp, _interval(logs))
        return gain, (low - 1, high - 1), f"mean of {len(logs)} pairs, {ratio_interval(low, high)}"
    comparison = of_runs()
    if comparison.resolution != "faster":
        return gain, None, "1 pair, not resolved"
    words = f"1 pair, {ratio_interval(comparison.low, comparison.high)} over runs beside each other"
    return comparison.ratio - 1, (comparison.low - 1, comparison.high - 1), words


def _differs(logs: NDArray[np.float64], pair: Sequence[Measurement]) -> bool:
    """Returns whether the 95 % interval excludes equal speeds.

    The interval is over the pairs' ratios, whose logarithms are `logs`; for a single pair, over both measurements'
    windows.
    """
    if len(logs) == 1:
        return abs(float(logs[0])) > math.hypot(*map(_margin, pair))
    low, high = _interval(logs)
    return low > 0 or high < 0


def _interval(logs: NDArray[np.float64]) -> tuple[float, float]:
    half = t_quantile(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return float(logs.mean()) - half, float(logs.mean()) + half


def _margin(measurement: Measurement) -> float:
    """Returns half of the time's 95 % interval over a measurement's windows, as a share; infinite for one window."""
    low_s, high_s = interval(measurement.windows_s)
    return (high_s - low_s) / (high_s + low_s) if math.isfinite(high_s) else math.inf


def _of_winner(
    winner: tuple[Any, ...], place: int, fast: Any, slow: Any, speed: Mapping[tuple[Any, ...], float]
) -> str:
    """Returns a clause on how the winner compares with the `fast` value if it has the `slow` one; "" otherwise.

    `place` is the axis' index; `speed` is tokens/s by the values of all axes.
    """
    if winner[place] != slow:
        return ""
    beside = (*winner[:place], fast, *winner[place + 1 :])
    if beside not in speed:
        return ", without the winner"
    return ", the other way round for the winner" if speed[beside] < speed.get(winner, 0.0) else ""


def reasons_for_winner(result: RecipeResult, forecaster: Forecaster) -> list[str]:
    """Returns the winner's lead over the best other layout, its predicted savings by part, and both memories."""
    best, second, lead = result.winner, result.runner_up, result.lead
    if best is None or second is None or lead is None or not best.tokens_per_s or not second.tokens_per_s:
        return []
    name = f"{second.layout.label} at micro-batch {second.batch.micro_batch}"
    name += ", which was stopped as slow" if second.outcome is Outcome.SLOW else ""
    match lead.resolution:
        case "faster":
            words = f"The winner is {lead.ratio - 1:.1%} ahead of {name} ({ratio_interval(lead.low, lead.high)})"
        case "tie":
            words = f"The winner is tied with {name} ({ratio_interval(lead.low, lead.high)})"
        case "not resolved":
            words = f"Not resolved between the winner and {name}, the best other layout: "
            words += f"{figure(best.tokens_per_s)} and {figure(second.tokens_per_s)} tokens/s"
    prediction = forecaster.of([best, second])
    if prediction is not None and (parts := _parts(prediction.step)):
        step_s = prediction.step.total_s
        predicted_lead = float(step_s[1] / step_s[0]) - 1
        side = "ahead" if predicted_lead >= 0 else "behind"
        words += f"; the cost model has it {abs(predicted_lead):.1%} {side}: of that step"
        words += f" {', '.join(parts)}"
    if best.peak_allocated_gib is not None and second.peak_allocated_gib is not None:
        words += f"; {figure(best.peak_allocated_gib)} GiB allocated beside {figure(second.peak_allocated_gib)}"
    return [words + "."]


def _parts(step: StepTime) -> list[str]:
    """Returns how the first of two predicted steps differs from the second by part, as shares of the second."""
    total_s = float(step.total_s[1])
    more = {
        part: sum(float(array[0] - array[1]) for array in (getattr(step, field) for field in fields)) / total_s
        for part, fields in PARTS.items()
    }
    return [
        f"{abs(share):.1%} {'less' if share < 0 else 'more'} on {part}"
        for part, share in sorted(more.items(), key=lambda item: -abs(item[1]))
        if abs(share) >= NOTED
    ]


def cost_saving(result: RecipeResult, header: StudyHeader) -> str:
    """Returns the duration of the planned training with the winner, and its saving over the median timed run."""
    best = result.winner
    assert best is not None and best.tokens_per_s
    speeds = [
        measurement.tokens_per_s
        for measurement in result.measurements
        if measurement.outcome in TIMED and measurement.tokens_per_s
    ]
    middle = statistics.median(speeds)
    tokens, devices = header.tokens, best.num_devices
    plan_days, other_days = (tokens / speed * devices / DAY_S for speed in (best.tokens_per_s, middle))
    device = header.cluster.device_word
    words = f"{count(tokens)} tokens the winner takes {figure(plan_days)} {device}-days"
    if other_days < plan_days * (1 + NOTED):
        return words
    low, high = (result.winning_point and result.winning_point.interval_tokens_per_s) or (0.0, math.inf)
    saved = f"{words}, {figure(other_days - plan_days)} less than the median of what ran"
    if low <= middle:
        return f"{saved}, which the winner's runs do not resolve (--repeats 3)"
    shortest, longest = (figure(other_days - tokens / speed * devices / DAY_S) for speed in (low, high))
    return f"{saved} (95 % interval of its runs {shortest} to {longest})"


def _axes(measurement: Measurement) -> tuple[Any, ...]:
    return *(getattr(measurement.layout, axis) for axis in AXES[:-1]), measurement.batch.micro_batch
