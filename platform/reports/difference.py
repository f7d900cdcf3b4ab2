"""What differs between two measurements, and what of the difference in step time each change makes.

Shares are logarithms: that a change makes a step 10 % longer and another one 20 % makes it 32 % longer together.
"""

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from platform.common.errors import InputError
from platform.common.text import figure
from platform.reports.forecast import Forecaster
from trainers.values.batch import BatchPoint
from trainers.values.codec import to_json
from trainers.values.journal import StudyHeader
from trainers.values.layout import Layout
from trainers.values.measurement import Measurement, Outcome
from trainers.values.recipe import Recipe
from trainers.values.spec import ModelSpec

_NOTED = 0.002
"""Share of a step below which a part of it is not named."""
_MACHINE: tuple[tuple[str, Callable[[Measurement], Sequence[float]], str], ...] = (
    ("clock of the slowest GPU", lambda each: each.sm_clock_mhz, " MHz"),
    ("power of all GPUs", lambda each: each.power_w, " W"),
    ("processors taken by other processes", lambda each: each.others_busy_pct, " %"),
    ("steal time", lambda each: each.steal_pct, " %"),
    ("clock of the processors", lambda each: each.cpu_clock_mhz, " MHz"),
)
"""What was recorded of the machine: its name, its values in a measurement, their unit."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that differs, or several that can only change together."""

    names: tuple[str, ...]
    values: str
    ratio: float | None = None
    """Step time with the change over that without it; None where nothing tells."""
    source: str = ""
    """Where the ratio is from: "measured" or "predicted"; "" without one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The second measurement beside the first."""

    first: Measurement
    second: Measurement
    changes: tuple[Change, ...]
    """Of recipe, batch point and layout, one after the other from the first to the second."""
    surroundings: tuple[Change, ...]
    """Of the machine, versions, commit and environment: what is left is theirs, or the cost model's error."""
    parts: Mapping[str, float]
    """Seconds that the second's step takes more, by its measured parts; empty where these were not timed."""

    @property
    def ratio(self) -> float | None:
        """The second's seconds a token over the first's; None where one has no speed."""
        one, other = self.first.tokens_per_s, self.second.tokens_per_s
        return one / other if one and other else None

    @property
    def rest(self) -> float | None:
        """What the changes do not explain, as a ratio of seconds a token; None where a change has none."""
        if self.ratio is None or any(each.ratio is None for each in self.changes):
            return None
        return self.ratio / math.prod(each.ratio or 1.0 for each in self.changes)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    """What is measured, without what came out."""

    recipe: Recipe
    layout: Layout
    micro_batch: int

    @property
    def batch(self) -> BatchPoint:
        return BatchPoint.of(self.recipe, self.layout, self.micro_batch)


def difference(
    first: Measurement, second: Measurement, headers: tuple[StudyHeader, StudyHeader], known: Sequence[Measurement] = ()
) -> Difference:
    """The second beside the first, each with the first line of its study; `known` are all measurements of the studies,
    which tell what one change alone does where it was measured.
    """
    begin, end = (_Point(recipe=each.recipe, layout=each.layout, micro_batch=each.batch.micro_batch)
                  for each in (first, second))  # fmt: skip
    path = list(_path(begin, end))
    points = [begin, *(point for point, _, _ in path)]
    measured = _measured(points, known, (first, second))
    predicted = _predicted(points, headers[0])
    changes: list[Change] = []
    for place, (_, names, values) in enumerate(path):
        ratio, source = None, ""
        for times, name in ((measured, "measured"), (predicted, "predicted")):
            before, after = times[place], times[place + 1]
            if ratio is None and before and after:
                ratio, source = after / before, name
        changes.append(Change(names=names, values=values, ratio=ratio, source=source))
    return Difference(
        first=first,
        second=second,
        changes=tuple(changes),
        surroundings=tuple(_surroundings(first, second, headers)),
        parts=_parts(first, second),
    )


_Field = tuple[str, Any, Any, str]
_MOST_TOGETHER = 4
"""Axes that are tried together where none can change alone; else all that are left change at once."""


def _path(begin: _Point, end: _Point) -> Iterator[tuple[_Point, tuple[str, ...], str]]:
    """The points from the one to the other, each with what changed to reach it: one axis after the other in their
    declared order, and together those that cannot change alone (a stage with its degrees).
    """
    left, at = list(_changed(begin, end)), begin
    while left:
        at, some = next(_next_steps(at, left, {at.layout.world_size, end.layout.world_size}), (end, tuple(left)))
        left = [field for field in left if field not in some]
        names = tuple(name for name, *_ in some)
        values = [f"{_word(old)} to {_word(new)}" for _, old, new, _ in some]
        if len(names) > 1:
            values = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
        yield at, names, ", ".join(values)


def _next_steps(at: _Point, left: Sequence[_Field], sizes: set[int]) -> Iterator[tuple[_Point, tuple[_Field, ...]]]:
    """Valid points that are the fewest changes away, on as many devices as one of the ends."""
    for number in range(1, min(_MOST_TOGETHER, len(left)) + 1):
        for some in itertools.combinations(left, number):
            with contextlib.suppress(ValueError):
                yield _applied(at, some, sizes), some


def _applied(at: _Point, some: Sequence[_Field], sizes: set[int]) -> _Point:
    """The point with these changes.

    Raises:
        ValueError: there is no such point, or not on so many devices.
    """
    changed = {"recipe": {}, "layout": {}, "": {}}
    for name, _, new, part in some:
        changed[part][name] = new
    point = _Point(
        recipe=dataclasses.replace(at.recipe, **changed["recipe"]),
        layout=dataclasses.replace(at.layout, **changed["layout"]),
        micro_batch=changed[""].get("micro_batch", at.micro_batch),
    )
    if point.layout.world_size not in sizes:
        raise ValueError(f"{point.layout.world_size} devices lie between the two")
    BatchPoint.of(point.recipe, point.layout, point.micro_batch)
    return point


def _changed(begin: _Point, end: _Point) -> Iterator[_Field]:
    """Each field that differs: its name, both values, and whether the recipe, the layout or ("") the point has it."""
    for part in ("recipe", "layout"):
        one, other = getattr(begin, part), getattr(end, part)
        for field in dataclasses.fields(one):
            old, new = getattr(one, field.name), getattr(other, field.name)
            if old != new:
                yield field.name, old, new, part
    if begin.micro_batch != end.micro_batch:
        yield "micro_batch", begin.micro_batch, end.micro_batch, ""


def _word(value: Any) -> str:
    return value.name if isinstance(value, ModelSpec) else str(value)


def _measured(
    points: Sequence[_Point], known: Sequence[Measurement], ends: tuple[Measurement, Measurement]
) -> list[float | None]:
    """Seconds a token of each point where it was measured; those of the two ends are theirs."""
    found = {(each.recipe, each.layout, each.batch): 1 / each.tokens_per_s for each in known if each.tokens_per_s}
    times = [found.get((each.recipe, each.layout, each.batch)) for each in points]
    for place, end in ((0, ends[0]), (-1, ends[1])):
        times[place] = 1 / end.tokens_per_s if end.tokens_per_s else None
    return times


def _predicted(points: Sequence[_Point], header: StudyHeader) -> list[float | None]:
    """Seconds a token of each point on the first's devices by the cost model; None where it cannot tell."""
    times: list[float | None] = []
    for each in points:
        try:
            cluster = header.cluster
            if each.layout.world_size != cluster.num_devices:
                cluster = dataclasses.replace(cluster, num_nodes=1, devices_per_node=each.layout.world_size)
            forecaster = Forecaster(cluster=cluster, cap_gib=header.cap_gib)
            bare = Measurement(recipe=each.recipe, layout=each.layout, batch=each.batch, outcome=Outcome.OK)
            prediction = forecaster.of([bare])
        except ValueError:
            prediction = None
        tokens = each.batch.global_batch(each.layout) * each.recipe.seq_len
        times.append(None if prediction is None else float(prediction.step.total_s[0]) / tokens)
    return times


def _surroundings(
    first: Measurement, second: Measurement, headers: tuple[StudyHeader, StudyHeader]
) -> Iterator[Change]:
    """What differs beside what was measured."""
    old, new = headers[0].cluster, headers[1].cluster
    if old != new:
        yield Change(names=("devices",), values=f"{old.label} to {new.label}")
    peaks = first.matmul_peak_tflops, second.matmul_peak_tflops
    if all(peaks) and abs((peaks[1] or 0.0) / (peaks[0] or 1.0) - 1) > 0.01:
        yield Change(names=("matmul peak",), values=f"{figure(peaks[0])} to {figure(peaks[1])} TFLOP/s a device")
    for name, of, unit in _MACHINE:
        then, now = of(first), of(second)
        if (
            then
            and now
            and abs(statistics.fmean(now) - statistics.fmean(then)) > 0.03 * max(statistics.fmean(then), 1.0)
        ):
            yield Change(
                names=(name,), values=f"{figure(statistics.fmean(then))} to {figure(statistics.fmean(now))}{unit}"
            )
    if first.held_back_by != second.held_back_by:
        held = (", ".join(each.held_back_by) or "nothing" for each in (first, second))
        yield Change(names=("clocks lowered by",), values=" to ".join(held))
    if first.step_time_derived != second.step_time_derived:
        kinds = ("derived" if each.step_time_derived else "timed whole" for each in (first, second))
        yield Change(names=("step time",), values=" to ".join(kinds))
    one, other = (to_json(each.conditions) if each.conditions else {} for each in (first, second))
    for part in ("versions", "environment"):
        before, after = one.get(part, {}), other.get(part, {})
        for name in sorted({*before, *after}):
            if one and other and before.get(name) != after.get(name):
                yield Change(names=(name,), values=f"{before.get(name, 'not set')} to {after.get(name, 'not set')}")
    if one and other and one["commit"] != other["commit"]:
        yield Change(names=("commit",), values=f"{one['commit']} to {other['commit']}")


def _parts(first: Measurement, second: Measurement) -> dict[str, float]:
    """Seconds that a micro-step and an optimizer step of the second take more."""
    pairs = {
        "a middle micro-step": (first.middle_micro_step_s, second.middle_micro_step_s),
        "the last micro-step, with the exchange of gradients": (first.last_micro_step_s, second.last_micro_step_s),
        "the optimizer step": (first.optimizer_step_s, second.optimizer_step_s),
    }
    least = _NOTED * (first.step_time_s or 0.0)
    return {
        name: after - before
        for name, (before, after) in pairs.items()
        if before is not None and after is not None and abs(after - before) > least / max(1, first.batch.grad_accum)
    }


def sentences(found: Difference) -> list[str]:
    """What differs, a sentence each: the whole, each change with its share, what is left, and what else differs."""
    first, second, ratio = found.first, found.second, found.ratio
    named = [f"{each.layout.label}, micro-batch {each.batch.micro_batch}" for each in (first, second)]
    if ratio is None:
        ends = [f"{name}: {each.outcome}{f' ({each.reason})' if each.reason else ''}"
                for name, each in zip(named, (first, second), strict=True)]  # fmt: skip
        lines = [f"One of the two has no speed: {'; '.join(ends)}."]
    else:
        apart = f"{abs(1 - 1 / ratio):.1%} {'slower' if ratio > 1 else 'faster'} than"
        apart = "as fast as" if abs(ratio - 1) < _NOTED else apart
        figures = f"{figure(second.tokens_per_s)} against {figure(first.tokens_per_s)} tokens/s"
        lines = [f"{named[1]} is {apart} {named[0]}: {figures}."]
    lines += [_sentence(each, ratio) for each in found.changes]
    if not found.changes:
        lines.append("Recipe, layout and batch point are the same.")
    rest = found.rest
    if rest is not None and ratio is not None and (found.changes or found.surroundings):
        whose = "the surroundings below" if found.surroundings else "nothing that was recorded"
        model = " and the cost model's error" if any(each.source == "predicted" for each in found.changes) else ""
        belongs = "" if abs(rest - 1) < _NOTED / 2 else f" It belongs to {whose}{model}."
        lines.append(f"Left over: {_effect(rest, ratio)}.{belongs}")
    lines += [f"Also {each.names[0]}: {each.values}." for each in found.surroundings]
    lines += [f"Measured: {name} takes {figure(abs(s) * 1e3)} ms {'more' if s > 0 else 'less'}."
              for name, s in found.parts.items()]  # fmt: skip
    return lines


def _sentence(change: Change, whole: float | None) -> str:
    name = " with ".join(change.names)
    if change.ratio is None or whole is None:
        return f"{name}: {change.values} (its share is not known: not measured alone, and not predicted here)."
    return f"{name}: {change.values}: {_effect(change.ratio, whole)} ({change.source})."


def _effect(ratio: float, whole: float) -> str:
    """Such as "12.0 % slower, 80 % of the difference"."""
    if abs(ratio - 1) < _NOTED / 2:
        return "no difference"
    words = f"{abs(1 - 1 / ratio):.1%} {'slower' if ratio > 1 else 'faster'}"
    share = math.log(ratio) / math.log(whole) if abs(whole - 1) >= _NOTED else None
    return words if share is None else f"{words}, {share:.0%} of the difference"


def chosen(measurements: Sequence[Measurement], winner: Measurement | None, wanted: str) -> Measurement:
    """The measurement whose id begins with `wanted`; the winner for "".

    Raises:
        InputError: there is none, or several have such an id.
    """
    if not wanted:
        if winner is None:
            raise InputError("the study has no winner to compare: name a measurement, as STUDY:ID")
        return winner
    found = [each for each in measurements if each.id.startswith(wanted)]
    if len(found) != 1:
        some = ", ".join(each.id for each in measurements[:3])
        why = "no measurement's id begins" if not found else f"{len(found)} measurements' ids begin"
        raise InputError(f"{why} with {wanted!r}: give one of those of --json, such as {some or 'none'}")
    return found[0]
