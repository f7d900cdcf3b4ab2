"""Summarises what a study taught: what each axis gained, why the winner won, what the search cost and saved."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from platform.common.text import count, figure
from platform.cost_model.step_time import StepTime
from platform.report.forecast import Forecaster
from platform.study.result.ranking import PointRuns, ratio_interval, speed_of
from platform.study.result.result import RecipeResult, StudyResult
from trainers.measuring.intervals import interval
from trainers.records.journal import StudyHeader
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.layout import Layout

DAY_S = 86400.0
PARTS = {
    "compute": ("compute_s",),
    "attention": ("attention_s",),
    "optimizer": ("optimizer_s",),
    "waiting for the host": ("host_s",),
    "communication": ("tensor_s", "pipeline_s", "data_s"),
    "pipeline bubbles": ("bubble_s",),
}
"""Parts of a predicted step by the name they are reported under."""
NOTED = 0.005
"""Share of a step by which two layouts' parts must differ to be reported."""
AXES = (*(field.name for field in dataclasses.fields(Layout)), "micro_batch")


def lessons(result: StudyResult, forecaster: Forecaster) -> list[str]:
    """Returns sentences for each recipe with a winner, then on what the search cost."""
    header = result.header
    winners = [recipe_result for recipe_result, _ in result.winners]
    cost = f"The search cost {figure(result.history.gpu_s / DAY_S)} {header.cluster.device_word}-days"
    lines_of = [
        [*axes_worth(winner.points, winner.winner), *reasons_for_winner(winner, forecaster)] for winner in winners
    ]
    if len(winners) == 1:
        saved = (
            "a miniature's answer saves no training time"
            if header.miniature
            else f"over {cost_saving(winners[0], header)}"
        )
        return [*lines_of[0], f"{cost}; {saved}."]
    sentences: list[str] = []
    for recipe_result, lines in zip(winners, lines_of, strict=True):
        sentences += [f"Of {recipe_result.recipe.label}:", *lines]
        sentences += [] if header.miniature else [f"Over {cost_saving(recipe_result, header)}."]
    return [*sentences, f"{cost}."] if sentences else []


def axes_worth(points: Sequence[PointRuns], winner: Measurement | None) -> list[str]:
    """Returns for each axis how its values compare between measurements that differ in nothing else.

    One sentence an axis, the most telling first: the mean ratio of tokens/s over the pairs. A comparison whose 95 %
    interval holds no difference is left out: over the pairs, for a single one over both measurements' windows. A single
    pair is not resolved unless runs beside each other show the same. Where a comparison speaks against the winner's
    value, the sentence says how the winner itself compares.
    """
    searches = [point.search for point in points if point.search is not None]
    timed = [search for search in searches if search.outcome in TIMED and search.tokens_per_s]
    rows = [_axes(measurement) for measurement in timed]
    speed = {row: measurement.tokens_per_s or 0.0 for row, measurement in zip(rows, timed, strict=True)}
    point_of = {point.search.id: point for point in points if point.search is not None}
    places = [place for place in range(len(AXES)) if len({row[place] for row in rows}) > 1]
    sentences: dict[str, tuple[float, list[str]]] = {}
    for place in places:
        other_places = [other for other in places if other != place]
        for (value, other), pairs in _pairs(rows, timed, place, other_places).items():
            if not _differs(pairs):
                continue
            if statistics.fmean(map(_log_ratio, pairs)) < 0:
                value, other, pairs = other, value, [(second, first) for first, second in pairs]
            gain, certainty = _gain(pairs, point_of)
            remark = "" if winner is None else _of_winner(_axes(winner), place, value, other, speed)
            words = f"{value} is {gain:.1%} faster than {other} ({certainty}{remark})"
            largest, phrases = sentences.get(AXES[place], (0.0, []))
            sentences[AXES[place]] = (max(largest, gain), [*phrases, words])
    of_miniature = " of the miniature" if timed and timed[0].miniature else ""
    return [
        f"{axis.replace('_', '-')}{of_miniature}, all else equal: {'; '.join(words)}."
        for axis, (_, words) in sorted(sentences.items(), key=lambda item: -item[1][0])
    ]


_Pair = tuple[Measurement, Measurement]


def _pairs(
    rows: Sequence[tuple[Any, ...]], timed: Sequence[Measurement], place: int, other_places: Sequence[int]
) -> dict[tuple[Any, Any], list[_Pair]]:
    """Returns the pairs of measurements that differ in the axis at `place` alone, by its two values; at `other_places`
    are the other axes in which any two differ.

    Measurements are grouped by these, since a study of 10,000 has too many pairs to compare each.
    """
    groups: dict[Any, list[tuple[Any, Measurement]]] = {}
    for row, measurement in zip(rows, timed, strict=True):
        groups.setdefault(tuple(row[other] for other in other_places), []).append((row[place], measurement))
    pairs: dict[tuple[Any, Any], list[_Pair]] = {}
    for group in groups.values():
        for (value, measurement), (other_value, other) in itertools.combinations(group, 2):
            if (other_value, value) in pairs:
                pairs[other_value, value].append((other, measurement))
            elif value != other_value:
                pairs.setdefault((value, other_value), []).append((measurement, other))
    return pairs


def _log_ratio(pair: _Pair) -> float:
    """Returns the logarithm of the first measurement's tokens/s over the other's."""
    return math.log(speed_of(pair[0]) / speed_of(pair[1]))


def _gain(pairs: Sequence[_Pair], point_of: Mapping[str, PointRuns]) -> tuple[float, str]:
    """Returns (share by which the first measurements are faster, its interval over the pairs, over runs of the only
    pair's points beside each other, or that it is not resolved).
    """
    logs = list(map(_log_ratio, pairs))
    gain = math.exp(statistics.fmean(logs)) - 1
    if len(pairs) > 1:
        return gain, f"mean of {len(pairs)} pairs, {ratio_interval(*map(math.exp, interval(logs)))}"
    fast, slow = (point_of[measurement.id] for measurement in pairs[0])
    comparison = fast.beside(slow)
    if comparison.resolution != "faster":
        return gain, "1 pair, not resolved"
    words = f"1 pair, {ratio_interval(comparison.low, comparison.high)} over runs beside each other"
    return comparison.ratio - 1, words


def _differs(pairs: Sequence[_Pair]) -> bool:
    """Returns whether the 95 % interval excludes equal speeds: over the pairs' ratios, for a single one over both
    measurements' windows.
    """
    logs = list(map(_log_ratio, pairs))
    if len(pairs) == 1:
        return abs(logs[0]) > math.hypot(*map(_margin, pairs[0]))
    low, high = interval(logs)
    return low > 0 or high < 0


def _margin(measurement: Measurement) -> float:
    """Returns half of the 95 % interval of a measurement's time over its windows, as a share; infinite for one."""
    low_s, high_s = interval(measurement.windows_s)
    return (high_s - low_s) / (high_s + low_s) if math.isfinite(high_s) else math.inf


def _of_winner(
    winner: tuple[Any, ...], place: int, fast: Any, slow: Any, speed: Mapping[tuple[Any, ...], float]
) -> str:
    """Returns how the winner, where it has the `slow` value of the axis at `place`, compares with the `fast` one; else
    "". `speed` is tokens/s by a point's axes.
    """
    if winner[place] != slow:
        return ""
    beside = (*winner[:place], fast, *winner[place + 1 :])
    if beside not in speed:
        return ", without the winner"
    return ", the other way round for the winner" if speed[beside] < speed.get(winner, 0.0) else ""


def reasons_for_winner(result: RecipeResult, forecaster: Forecaster) -> list[str]:
    """Returns how far the winner is ahead of the best other layout by runs beside each other, what its step saves by
    the cost model, and both memories.
    """
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
    """Returns what the first of two predicted steps spends more or less than the second, as shares of the second."""
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
    """Returns how long the planned run takes with the winner, and what that saves over the median of what ran."""
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
    least, most = (figure(other_days - tokens / speed * devices / DAY_S) for speed in (low, high))
    return f"{saved} (95 % interval of its runs {least} to {most})"


def _axes(measurement: Measurement) -> tuple[Any, ...]:
    return *(getattr(measurement.layout, axis) for axis in AXES[:-1]), measurement.batch.micro_batch
