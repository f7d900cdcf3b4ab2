"""Layouts as arrays, one per axis, from which the features are built."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from platform.cost_model.columns import ENGINE_AXES, Array, code_of
from trainers.spec.degree import Cut
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import CUTTING

AXES = tuple(field.name for field in dataclasses.fields(Layout))
Words = tuple[tuple[str, ...], npt.NDArray[np.int64]]
"""The distinct words of an axis, and the index of each row's word."""


class LayoutArrays:
    """The values of layouts by axis, as arrays that broadcast: numbers, or words as indices into the distinct words."""

    def __init__(self, values: Mapping[str, Words | Array]) -> None:
        self._values = values

    @classmethod
    def of(cls, layouts: Sequence[Mapping[str, str | float]]) -> "LayoutArrays":
        """Returns arrays with one row per layout, each given as a mapping of all `AXES`."""
        return cls({axis: _column([layout[axis] for layout in layouts]) for axis in AXES})

    def engine_axes(self) -> dict[str, Array]:
        """Returns the values of `ENGINE_AXES` in the form of `Columns.axes`."""
        return {
            axis: self.of_words(functools.partial(code_of, axis), axis)
            if isinstance(values := self._values[axis], tuple)
            else values
            for axis in ENGINE_AXES
        }

    def numbers(self, axis: str) -> Array:
        """Returns the values of a numeric axis."""
        values = self._values[axis]
        assert not isinstance(values, tuple), axis
        return values

    def parts(self, cut: Cut) -> Array:
        """Returns the number of parts into which `cut` is divided over ranks."""
        return math.prod(map(self.numbers, CUTTING[cut]), start=np.ones(()))

    def distinct(self, axis: str) -> Words:
        """Returns the distinct words of an axis, and the index of each row's word."""
        values = self._values[axis]
        assert isinstance(values, tuple), axis
        return values

    def of_words(self, function: Callable[..., float], *axes: str) -> Array:
        """Returns `function` of the words of `axes`, called once per combination of distinct words."""
        columns = [self._values[axis] for axis in axes]
        words = [column[0] for column in columns if isinstance(column, tuple)]
        places = [column[1] for column in columns if isinstance(column, tuple)]
        table = np.empty([len(word) for word in words])
        for place in np.ndindex(table.shape):
            table[place] = function(*(choices[index] for choices, index in zip(words, place, strict=True)))
        return table[tuple(places)]


def words(values: Sequence[str], places: npt.NDArray[np.int64]) -> Words:
    return tuple(values), places


def _column(values: Sequence[str | float]) -> Words | Array:
    if not isinstance(values[0], str):
        return np.array(values, dtype=np.float64)
    distinct: dict[str, int] = {}
    places = np.array([distinct.setdefault(str(value), len(distinct)) for value in values], dtype=np.int64)
    return tuple(distinct), places
