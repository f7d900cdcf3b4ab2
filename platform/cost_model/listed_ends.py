"""Finds axes on which the best point has the largest or smallest listed value, with the next point beyond."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from search_spaces.changes import MICRO_BATCH
from search_spaces.degrees import refilled
from trainers.spec.axis import axes_of
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_NUMBERS = {name: axis.least for name, axis in axes_of(Layout).items() if axis.least is not None}
"""The least value of each numeric axis whose values can be extended."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ListedEnd:
    """An axis on which the best point has the end value of the list, and the point with the next value beyond."""

    axis: str
    value: int
    beyond: int
    """Twice the value at the largest end, half of it at the smallest."""
    layout: Layout
    batch: BatchPoint

    @property
    def words(self) -> str:
        """Text with the axis, its value and the end."""
        return f"{self.axis} {self.value} is the {'largest' if self.beyond > self.value else 'smallest'} value listed"

    @property
    def option(self) -> str:
        """The command-line option that adds the next value."""
        return f"--set {self.axis}={self.value},{self.beyond}"


def listed_ends(
    recipe: Recipe,
    layout: Layout,
    micro_batch: int,
    *,
    listed: Mapping[Layout, Sequence[int]],
    refuses: Callable[[Layout], str | None],
) -> tuple[ListedEnd, ...]:
    """Returns the axes on which `layout` at `micro_batch` has the end value of the values in `listed`, if the next
    value beyond could run (without regard to memory).

    `listed` holds the micro-batches of every layout to try; `refuses` returns the reason why a layout cannot run. An
    axis with a single value was fixed by the user and has no end.
    """
    ends: list[ListedEnd] = []
    for axis, value, beyond in _ends(layout, micro_batch, listed):
        try:
            other = layout if axis == MICRO_BATCH else refilled(layout, layout.world_size, **{axis: beyond})
            batch = BatchPoint.of(recipe, other, beyond if axis == MICRO_BATCH else micro_batch)
        except ValueError:
            continue
        if not refuses(other):
            ends.append(ListedEnd(axis=axis, value=value, beyond=beyond, layout=other, batch=batch))
    return tuple(ends)


def _ends(layout: Layout, micro_batch: int, listed: Mapping[Layout, Sequence[int]]) -> Iterator[tuple[str, int, int]]:
    """Yields (axis, value, next value) for each end."""
    values_by_axis = {axis: (getattr(layout, axis), {getattr(other, axis) for other in listed}) for axis in _NUMBERS}
    values_by_axis[MICRO_BATCH] = (micro_batch, set(listed.get(layout, ())))
    for axis, (value, values) in values_by_axis.items():
        if len(values) < 2:
            continue
        if value == max(values) and value:
            yield axis, value, 2 * value
        elif value == min(values) and value // 2 >= max(1, _NUMBERS.get(axis, 1)):
            yield axis, value, value // 2
