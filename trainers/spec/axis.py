"""Declares axes beyond their type: how an axis is shown, read back from an engine, and what it does to memory.

An axis is one field of a `Layout` or a `Recipe`, made by `axis`. `--set`, labels, reports, MLflow, the check of what
runs, pruning by memory and the table in docs/reference/axes.md follow from the declaration.
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
    """Its meaning, in a sentence for people."""
    label: str | Callable[[Any], str] = ""
    """Words for a value, with {} in its place; empty where other words include it."""
    short: str = ""
    """Words for a value in the names of MLflow's runs, where they differ from the label."""
    always_shown: bool = False
    """Whether its default is shown too."""
    column: str = ""
    """The reports' column that shows it; empty where another axis's words include it."""
    table: str = ""
    """The column of the measurement table that holds it, where that has another name."""
    parameter: bool = True
    """Whether it is an MLflow parameter; an axis that is not is part of `sharding` and `dp` there."""
    note: str = ""
    """Words in the notes of the measurement table, which has no column for it, for values other than the default."""
    read_back: Literal["always", "if set", "if known"] = "always"
    """Condition on which the value that an engine reads back must agree: always, where the axis is not at its default,
    or where the engine reads it back at all.
    """
    of_some_engines: bool = False
    """Whether it has a meaning only in engines whose rules name it."""
    of_the_stack: bool = False
    """Whether another software that runs the layout decides it itself (`platform.plan --software`)."""
    least: int | None = None
    """The smallest allowed number."""
    counts_blocks: bool = False
    """Whether it counts blocks of the model, of which it must be less."""
    lighter: tuple[Any, ...] = ()
    """Its values, from the one that needs most memory on; empty where memory does not follow from the value."""
    surely_lighter: bool = False
    """Whether that order holds without a prediction to confirm it."""
    of_number: Literal["", "lighter", "no memory"] = ""
    """Effect of a larger number on a rank's memory: less, or none; empty where neither is certain."""

    def words(self, value: Any) -> str:
        """Returns the words for `value`."""
        return self.label.format(value) if isinstance(self.label, str) else self.label(value)


def axis(default: Any = dataclasses.MISSING, *, later: bool = False, kind: type[Axis] = Axis, **declared: Any) -> Any:
    """Returns the field of an axis; `declared` are the fields of its declaration, of that `kind`.

    With `later`, identities of what was measured before the axis existed stay as they were (`codec.identity`).
    """
    metadata = {"axis": kind(**declared), **({"later": True} if later else {})}
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def axes_of(kind: type) -> Mapping[str, Axis]:
    """Returns the declaration of every axis of a dataclass by name, in the order of its fields."""
    return {field.name: field.metadata["axis"] for field in dataclasses.fields(kind) if "axis" in field.metadata}


@functools.cache
def choices_of(kind: type) -> Mapping[str, tuple[str, ...]]:
    """Returns the allowed values by name, of every axis that allows only certain ones."""
    hints = typing.get_type_hints(kind)
    return {name: typing.get_args(hints[name]) for name in axes_of(kind) if typing.get_origin(hints[name]) is Literal}


@functools.cache
def defaults_of(kind: type) -> Mapping[str, Any]:
    """Returns the default by name, of every axis that has one."""
    fields = {field.name: field.default for field in dataclasses.fields(kind) if field.name in axes_of(kind)}
    return {name: default for name, default in fields.items() if default is not dataclasses.MISSING}
