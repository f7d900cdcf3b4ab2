"""Finds the differences between two measurements and how much of the change in step time each explains.

Shares are computed from logarithms, because ratios multiply: 10 % and 20 % longer make 32 % longer together.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from platform.common.errors import InputError
from platform.report.environment_diff import EnvironmentChange, surroundings
from platform.report.forecast import Forecaster
from platform.study.result.ranking import Comparison
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

NOTED = 0.002
"""Differences below this share of a step are not named."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The second measurement compared with the first."""

    first: Measurement
    second: Measurement
    changes: tuple[EnvironmentChange, ...]
    """Changes of recipe, batch point and layout, applied one after another from the first measurement to the second."""
    surroundings: tuple[EnvironmentChange, ...]
    """Changes of machine, versions, commit and environment. The unexplained part is theirs or the cost model's
    error.
    """
    interval: tuple[float, float] | None
    """95 % interval of `ratio` over paired runs; None for fewer than two pairs."""
    parts: Mapping[str, float]
    """Seconds by which each timed part of the second's step is longer; empty if the parts were not timed."""

    @property
    def ratio(self) -> float | None:
        """The second's seconds per token over the first's; None if one has no speed."""
        first_rate, second_rate = self.first.tokens_per_s, self.second.tokens_per_s
        return first_rate / second_rate if first_rate and second_rate else None

    @property
    def unexplained_ratio(self) -> float | None:
        """The part of `ratio` that `changes` do not explain; None if one of them has no ratio."""
        if self.ratio is None or any(change.ratio is None for change in self.changes):
            return None
        return self.ratio / math.prod(change.ratio or 1.0 for change in self.changes)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    """The conditions of a measurement without its figures."""

    recipe: Recipe
    layout: Layout
    micro_batch: int

    @property
    def batch(self) -> BatchPoint:
        return BatchPoint.of(self.recipe, self.layout, self.micro_batch)


def difference(
    first: Measurement,
    second: Measurement,
    headers: tuple[StudyHeader, StudyHeader],
    measurements: Sequence[Measurement] = (),
    comparison: Comparison | None = None,
) -> Difference:
    """Returns the second measurement compared with the first.

    `headers` are the first lines of their studies. `measurements` are all of both studies; they show the effect of one
    change alone where it was measured. `comparison` compares the first's point with the second's by runs of one study.
    """
    begin, end = (
        _Point(recipe=measurement.recipe, layout=measurement.layout, micro_batch=measurement.batch.micro_batch)
        for measurement in (first, second)
    )
    path = list(_path(begin, end))
    points = [begin, *(point for point, _, _ in path)]
    measured = _measured(points, measurements, (first, second))
    predicted = _predicted(points, headers[0])
    changes: list[EnvironmentChange] = []
    for place, (_, names, values) in enumerate(path):
        ratio, source = None, ""
        for times, name in ((measured, "measured"), (predicted, "predicted")):
            before, after = times[place], times[place + 1]
            if ratio is None and before and after:
                ratio, source = after / before, name
        changes.append(EnvironmentChange(names=names, values=values, ratio=ratio, source=source))
    return Difference(
        first=first,
        second=second,
        changes=tuple(changes),
        surroundings=tuple(surroundings(first, second, headers)),
        interval=(comparison.low, comparison.high) if comparison and comparison.num_pairs > 1 else None,
        parts=_parts(first, second),
    )


_Field = tuple[str, Any, Any, str]
"""A changed field: name, first value, second value, and owner ("recipe", "layout", or "" for the point)."""
_MOST_TOGETHER = 4
"""Largest number of axes changed together when none can change alone; beyond it all remaining ones change at once."""


def _path(begin: _Point, end: _Point) -> Iterator[tuple[_Point, tuple[str, ...], str]]:
    """Yields the points from `begin` to `end`, each with the names and values that changed.

    One axis changes after another in their declared order. Axes that cannot change alone, such as a stage with its
    degrees, change together.
    """
    remaining, point = list(_changed(begin, end)), begin
    while remaining:
        point, some = next(
            _next_steps(point, remaining, {point.layout.world_size, end.layout.world_size}), (end, tuple(remaining))
        )
        remaining = [field for field in remaining if field not in some]
        names = tuple(name for name, *_ in some)
        values = [f"{_word(old)} to {_word(new)}" for _, old, new, _ in some]
        if len(names) > 1:
            values = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
        yield point, names, ", ".join(values)


def _next_steps(
    point: _Point, remaining: Sequence[_Field], sizes: set[int]
) -> Iterator[tuple[_Point, tuple[_Field, ...]]]:
    """Yields the valid points the fewest changes away that have as many devices as one of the ends (`sizes`)."""
    for number in range(1, min(_MOST_TOGETHER, len(remaining)) + 1):
        for some in itertools.combinations(remaining, number):
            with contextlib.suppress(ValueError):
                yield _applied(point, some, sizes), some


def _applied(start: _Point, some: Sequence[_Field], sizes: set[int]) -> _Point:
    """Returns the point with these changes.

    Raises:
        ValueError: the point is invalid, or its number of devices is not in `sizes`.
    """
    changed = {"recipe": {}, "layout": {}, "": {}}
    for name, _, new, part in some:
        changed[part][name] = new
    point = _Point(
        recipe=dataclasses.replace(start.recipe, **changed["recipe"]),
        layout=dataclasses.replace(start.layout, **changed["layout"]),
        micro_batch=changed[""].get("micro_batch", start.micro_batch),
    )
    if point.layout.world_size not in sizes:
        raise ValueError(f"{point.layout.world_size} devices lie between the two")
    BatchPoint.of(point.recipe, point.layout, point.micro_batch)
    return point


def _changed(begin: _Point, end: _Point) -> Iterator[_Field]:
    """Yields each field that differs."""
    for part in ("recipe", "layout"):
        first, second = getattr(begin, part), getattr(end, part)
        for field in dataclasses.fields(first):
            old, new = getattr(first, field.name), getattr(second, field.name)
            if old != new:
                yield field.name, old, new, part
    if begin.micro_batch != end.micro_batch:
        yield "micro_batch", begin.micro_batch, end.micro_batch, ""


def _word(value: Any) -> str:
    return value.name if isinstance(value, ModelSpec) else str(value)


def _measured(
    points: Sequence[_Point], measurements: Sequence[Measurement], ends: tuple[Measurement, Measurement]
) -> list[float | None]:
    """Returns the measured seconds per token of each point, None if not measured. Both ends use their own
    measurement.
    """
    step_s_of = {
        (measurement.recipe, measurement.layout, measurement.batch): 1 / measurement.tokens_per_s
        for measurement in measurements
        if measurement.tokens_per_s
    }
    times = [step_s_of.get((point.recipe, point.layout, point.batch)) for point in points]
    for place, end in ((0, ends[0]), (-1, ends[1])):
        times[place] = 1 / end.tokens_per_s if end.tokens_per_s else None
    return times


def _predicted(points: Sequence[_Point], header: StudyHeader) -> list[float | None]:
    """Returns the predicted seconds per token of each point on the first's devices; None without a prediction."""
    times: list[float | None] = []
    for point in points:
        try:
            cluster = header.cluster
            if point.layout.world_size != cluster.num_devices:
                cluster = dataclasses.replace(cluster, num_nodes=1, devices_per_node=point.layout.world_size)
            forecaster = Forecaster(cluster=cluster, cap_gib=header.cap_gib)
            bare = Measurement(recipe=point.recipe, layout=point.layout, batch=point.batch, outcome=Outcome.OK)
            prediction = forecaster.of([bare])
        except ValueError:
            prediction = None
        tokens = point.batch.global_batch(point.layout) * point.recipe.seq_len
        times.append(None if prediction is None else float(prediction.step.total_s[0]) / tokens)
    return times


def _parts(first: Measurement, second: Measurement) -> dict[str, float]:
    """Returns the additional seconds of the second's micro-steps and optimizer step, by the name of the part."""
    pairs = {
        "a middle micro-step": (first.middle_micro_step_s, second.middle_micro_step_s),
        "the last micro-step, with the exchange of gradients": (first.last_micro_step_s, second.last_micro_step_s),
        "the optimizer step": (first.optimizer_step_s, second.optimizer_step_s),
    }
    least = NOTED * (first.step_time_s or 0.0)
    return {
        name: after - before
        for name, (before, after) in pairs.items()
        if before is not None and after is not None and abs(after - before) > least / max(1, first.batch.grad_accum)
    }


def measurement_by_prefix(
    measurements: Sequence[Measurement], winner: Measurement | None, id_prefix: str
) -> Measurement:
    """Returns the measurement whose id begins with `id_prefix`; the winner if it is "".

    Raises:
        InputError: no measurement or several match, or there is no winner.
    """
    if not id_prefix:
        if winner is None:
            raise InputError("the study has no winner to compare: name a measurement, as STUDY:ID")
        return winner
    matches = [measurement for measurement in measurements if measurement.id.startswith(id_prefix)]
    if len(matches) != 1:
        some = ", ".join(measurement.id for measurement in measurements[:3])
        problem = "no measurement's id begins" if not matches else f"{len(matches)} measurements' ids begin"
        raise InputError(f"{problem} with {id_prefix!r}: give one of those of --json, such as {some or 'none'}")
    return matches[0]
