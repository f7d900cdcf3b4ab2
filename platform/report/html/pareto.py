"""The Pareto front: the points that no other one beats in every respect."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.recipe import Recipe

_MOST_COMPARED = 2000
"""Number of points, the fastest, that are compared with each other: the time grows with their square."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPoint:
    """A batch point that ran well, with its study."""

    measurement: Measurement
    header: StudyHeader

    @property
    def tokens_per_s(self) -> float:
        """Tokens/s over all devices."""
        return self.measurement.tokens_per_s or 0.0

    @property
    def peak_gib(self) -> float:
        """Largest allocated memory, on the fullest device."""
        return self.measurement.peak_allocated_gib or 0.0

    @property
    def limit_gib(self) -> float:
        """Memory that a device may hold."""
        return self.measurement.cap_gib or self.header.cluster.device_memory_gib

    @property
    def head_room_gib(self) -> float:
        """The difference of limit and peak."""
        return self.limit_gib - self.peak_gib

    @property
    def device_seconds_per_token(self) -> float:
        """Device seconds for a token."""
        return self.measurement.num_devices / self.tokens_per_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """All measurements of one recipe in a page's studies."""

    recipe: Recipe
    parts: tuple[tuple[StudyResult, RecipeResult], ...]

    @property
    def measurements(self) -> list[Measurement]:
        """The run that stands for each point, of all studies, skipped ones included."""
        return [point.representative for _, recipe_result in self.parts for point in recipe_result.points]

    @property
    def points(self) -> list[MeasuredPoint]:
        """The points that ran well."""
        return [
            MeasuredPoint(measurement=point.representative, header=result.header)
            for result, recipe_result in self.parts
            for point in recipe_result.points
            if point.representative.outcome is Outcome.OK and point.representative.tokens_per_s
        ]

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
    """Returns the recipes that were measured, each with its studies, in the order of their appearance."""
    parts: dict[str, list[tuple[StudyResult, RecipeResult]]] = {}
    for result in results:
        for recipe_result in result.measured:
            parts.setdefault(recipe_result.recipe.id, []).append((result, recipe_result))
    return [Group(recipe=members[0][1].recipe, parts=tuple(members)) for members in parts.values()]


def choices(points: Sequence[MeasuredPoint]) -> dict[str, MeasuredPoint]:
    """Returns the best point in each respect by the respect's name; of equals the faster one."""
    if not points:
        return {}
    return {
        "most tokens/s": max(points, key=lambda point: point.tokens_per_s),
        "cheapest (device time a token)": min(points, key=lambda point: point.device_seconds_per_token),
        "most head-room": max(points, key=lambda point: (point.head_room_gib, point.tokens_per_s)),
        "fewest devices": min(points, key=lambda point: (point.measurement.num_devices, -point.tokens_per_s)),
    }


def front(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """Returns the points that no other one beats in speed, device time a token, head-room and number of devices at
    once, the fastest first.
    """
    ordered = sorted(points, key=lambda point: -point.tokens_per_s)[:_MOST_COMPARED]
    gains = np.array(
        [
            (point.tokens_per_s, -point.device_seconds_per_token, point.head_room_gib, -point.measurement.num_devices)
            for point in ordered
        ]
    ).reshape(-1, 4)
    at_least = (gains[:, None, :] >= gains[None, :, :]).all(axis=2)
    better = at_least & (gains[:, None, :] > gains[None, :, :]).any(axis=2)
    beaten: list[bool] = np.asarray(better.any(axis=0)).tolist()
    return [point for point, is_beaten in zip(ordered, beaten, strict=True) if not is_beaten]


def staircase(points: Sequence[MeasuredPoint]) -> tuple[list[float], list[float]]:
    """Returns the front of speed against memory alone, as GiB and tokens/s."""
    gib: list[float] = []
    speed: list[float] = []
    for point in sorted(points, key=lambda measured_point: (measured_point.peak_gib, -measured_point.tokens_per_s)):
        if not speed or point.tokens_per_s > speed[-1]:
            gib.append(point.peak_gib)
            speed.append(point.tokens_per_s)
    return gib, speed
