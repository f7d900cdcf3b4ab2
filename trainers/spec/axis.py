"""Declares axes beyond their type: how an axis is shown, how it is read back from an engine, its effect on memory.

An axis is one field of a `Layout` or a `Recipe`, made by `axis`. `--set`, labels, reports, MLflow, the check of the
configuration in effect, pruning by memory and the table in docs/reference/axes.md follow from the declaration.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """The declaration of one axis."""

    about: str = ""
    """Its meaning in one sentence; printed in docs/reference/axes.md."""
    label: str | Callable[[Any], str] = ""
    """Text for a value, with {} for the value; empty if the label of another axis includes it."""
    short: str = ""
    """Text for a value in names of MLflow runs, if it differs from the label."""
    always_shown: bool = False
    """Whether the default value is shown too."""
    column: str = ""
    """The reports' column that shows it; empty if another axis's label includes it."""
    table: str = ""
    """The measurement table's column that holds it, if the column has another name than the axis."""
    parameter: bool = True
    """Whether it is an MLflow parameter; otherwise MLflow's `sharding` and `dp` include it."""
    note: str = ""
    """Text for the notes of the measurement table, which has no column for this axis; written for values other than the
    default.
    """
    read_back: Literal["always", "if set", "if known"] = "always"
    """Condition under which the value that an engine reports must equal the requested value: none, the axis is not at
    its default, or the engine reports the axis at all.
    """
    of_some_engines: bool = False
    """Whether only engines whose rules name it have this axis."""
    of_the_stack: bool = False
    """Whether foreign software that runs the layout chooses the value itself (`platform.plan --software`)."""
    least: int | None = None
    """The smallest allowed number."""
    counts_blocks: bool = False
    """Whether it counts blocks of the model and must be smaller than their number."""
    lighter: tuple[Any, ...] = ()
    """Its values in order of falling memory; empty if memory does not follow from the value."""
    surely_lighter: bool = False
    """Whether the order of `lighter` holds for certain, without a prediction to confirm it."""
    fills_host: bool = False
    """Whether the lighter values move memory of the device to the host's."""
    of_number: Literal["", "lighter", "no memory"] = ""
    """Effect of a larger number on a rank's memory: less, or none; empty if neither is certain."""

    def words(self, value: Any) -> str:
        return self.label.format(value) if isinstance(self.label, str) else self.label(value)


def axis(default: Any = dataclasses.MISSING, *, later: bool = False, kind: type[Axis] = Axis, **declared: Any) -> Any:
    """Returns the dataclass field of an axis; `declared` are the fields of its `kind`.

    With `later=True` the default value is left out of identities, so hashes of measurements made before the axis
    existed stay valid (`codec.identity`).
    """
    metadata = {"axis": kind(**declared), **({"later": True} if later else {})}
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def axes_of(kind: type) -> Mapping[str, Axis]:
    """Returns the declaration of every axis of a dataclass by name, in the order of its fields."""
    return {field.name: field.metadata["axis"] for field in dataclasses.fields(kind) if "axis" in field.metadata}


@functools.cache
def choices_of(kind: type) -> Mapping[str, tuple[str, ...]]:
    """Returns the allowed values of each axis that has a `Literal` type, by name."""
    hints = typing.get_type_hints(kind)
    return {name: typing.get_args(hints[name]) for name in axes_of(kind) if typing.get_origin(hints[name]) is Literal}


@functools.cache
def defaults_of(kind: type) -> Mapping[str, Any]:
    """Returns the default of each axis that has a default, by name."""
    fields = {field.name: field.default for field in dataclasses.fields(kind) if field.name in axes_of(kind)}
    return {name: default for name, default in fields.items() if default is not dataclasses.MISSING}


class AxisValues:
    """Base class of a dataclass whose fields are axes."""

    def is_set(self, axis: str) -> bool:
        return getattr(self, axis) != defaults_of(type(self)).get(axis)

    def axis_labels(self, *columns: str) -> dict[str, str]:
        """Returns the text of each axis shown in the given columns of reports, or in any column if none is given."""
        words_by_axis: dict[str, str] = {}
        for name, declared in axes_of(type(self)).items():
            if (
                declared.label
                and (self._is_shown(name) or declared.always_shown)
                and (not columns or declared.column in columns)
            ):
                words_by_axis[name] = declared.words(getattr(self, name))
        return words_by_axis

    def _is_shown(self, axis: str) -> bool:
        return self.is_set(axis)
