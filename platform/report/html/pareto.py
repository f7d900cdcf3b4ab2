"""The Pareto front: the points that no other point beats in every respect."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from platform.report.columns import MeasuredRow
from platform.report.summary import head_room_gib, limit_gib
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.recipe import Recipe

_MOST_COMPARED = 2000
"""Number of fastest points that are compared with each other, because the time grows with the square."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """All measurements of one recipe in the studies of a page."""

    recipe: Recipe
    parts: tuple[tuple[StudyResult, RecipeResult], ...]
    rows: tuple[MeasuredRow, ...]
    """A row for each point of all studies, skipped ones included."""

    @property
    def measurements(self) -> list[Measurement]:
        return [row.run for row in self.rows]

    @property
    def points(self) -> list[MeasuredRow]:
        return [row for row in self.rows if row.run.outcome is Outcome.OK and row.run.tokens_per_s]

    @property
    def winners(self) -> list[tuple[StudyResult, RecipeResult, Measurement]]:
        """Each study's winner, the fewest devices first."""
        with_winner = [
            (result, recipe_result, recipe_result.winner)
            for result, recipe_result in self.parts
            if recipe_result.winner is not None
        ]
        return sorted(with_winner, key=lambda part: part[2].num_devices)


def groups_of(results: Sequence[StudyResult]) -> list[Group]:
    """Returns a group for each measured recipe, in order of first appearance."""
    parts: dict[str, list[tuple[StudyResult, RecipeResult]]] = {}
    for result in results:
        for recipe_result in result.measured:
            parts.setdefault(recipe_result.recipe.id, []).append((result, recipe_result))
    return [
        Group(
            recipe=members[0][1].recipe,
            parts=tuple(members),
            rows=tuple(
                MeasuredRow(run=point.representative, header=result.header)
                for result, recipe_result in members
                for point in recipe_result.points
            ),
        )
        for members in parts.values()
    ]


def _speed(row: MeasuredRow) -> float:
    return row.run.tokens_per_s or 0.0


def _device_s_per_token(row: MeasuredRow) -> float:
    return row.run.num_devices / _speed(row)


def _head_room(row: MeasuredRow) -> float:
    head_room = head_room_gib(row.run, row.header)
    return limit_gib(row.run, row.header) if head_room is None else head_room


def choices(points: Sequence[MeasuredRow]) -> dict[str, MeasuredRow]:
    """Returns the best point by the name of the criterion; among equals, the faster one."""
    if not points:
        return {}
    return {
        "most tokens/s": max(points, key=_speed),
        "cheapest (device time a token)": min(points, key=_device_s_per_token),
        "most head-room": max(points, key=lambda point: (_head_room(point), _speed(point))),
        "fewest devices": min(points, key=lambda point: (point.run.num_devices, -_speed(point))),
    }


def front(points: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Returns the Pareto front in speed, device time per token, head-room and number of devices, the fastest first."""
    ordered = sorted(points, key=_speed, reverse=True)[:_MOST_COMPARED]
    gains = np.array(
        [(_speed(point), -_device_s_per_token(point), _head_room(point), -point.run.num_devices) for point in ordered]
    ).reshape(-1, 4)
    at_least = (gains[:, None, :] >= gains[None, :, :]).all(axis=2)
    better = at_least & (gains[:, None, :] > gains[None, :, :]).any(axis=2)
    beaten: list[bool] = np.asarray(better.any(axis=0)).tolist()
    return [point for point, is_beaten in zip(ordered, beaten, strict=True) if not is_beaten]


def staircase(points: Sequence[MeasuredRow]) -> tuple[list[float], list[float]]:
    """Returns the Pareto front of speed against memory as lists of GiB and tokens/s, of points with measured memory."""
    gib: list[float] = []
    speed: list[float] = []
    measured = [(point.run.peak_allocated_gib, _speed(point)) for point in points if point.run.peak_allocated_gib]
    for peak_gib, tokens_per_s in sorted(measured, key=lambda pair: (pair[0], -pair[1])):
        if not speed or tokens_per_s > speed[-1]:
            gib.append(peak_gib)
            speed.append(tokens_per_s)
    return gib, speed
