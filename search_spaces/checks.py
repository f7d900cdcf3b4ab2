"""Checks the types of a space file's values; for example, a forgotten comma turns a tuple into a string."""

import functools
import typing
from collections.abc import Mapping
from typing import Any

from search_spaces.candidate import Point
from search_spaces.changes import spelling_hint
from trainers.spec.codec import shortened
from trainers.spec.engines import rules_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_TUPLES: Mapping[str, type] = {
    "micro_batches": int, "further_recipes": Recipe, "points": Point, "variations": dict, "optional_axes": str,
    "remarks": str,
}  # fmt: skip


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def check_types(space: Any) -> None:
    """Checks that the fields of a `Space` have their types, because a space file may not have passed a type checker.

    Raises:
        ValueError: a field has another type.
    """
    name = f"space {space.name}"
    check_axes(space.axes, owner=name)
    check_axes(space.model_parallel, owner=f"the model-parallel part of {name}")
    for varied in space.variations:
        check_axes(varied, owner=f"the variations of {name}")
    for axis in space.narrowed:
        _check_name(axis, Layout, f"narrowed of {name} has an axis")
    for field, kind in _TUPLES.items():
        values = getattr(space, field)
        if not isinstance(values, tuple):
            raise ValueError(f"{field} of {name} must be a tuple, as in ({shortened(values)},), got no tuple")
        if wrong := [value for value in values if type(value) is not kind]:  # type: ignore[reportUnknownVariableType]
            raise ValueError(f"{field} of {name} must hold {kind.__name__} values, got {shortened(wrong[0])}")
    for recipe in space.recipes:
        check_recipe(recipe, owner=name)
    for field in ("tokens", "hang_floor_s", "first_step_s"):
        check_number(getattr(space, field), subject=f"{field} of {name}")
    for field in ("device_memory_gib", "time_budget_s"):
        check_number(getattr(space, field), subject=f"{field} of {name}", optional=True)
    check_number(space.num_workers, subject=f"num_workers of {name}", is_whole=True, optional=True)
    check_number(space.finalists, subject=f"finalists of {name}", is_whole=True)
    check_number(space.repeats, subject=f"repeats of {name}", is_whole=True)
    for point in space.points:
        owner = f"point {shortened(point.name)} of {name}"
        check_fields(point.layout, Layout, owner=owner)
        check_fields(point.recipe, Recipe, owner=owner)
        check_number(point.micro_batch, subject=f"micro_batch of {owner}", is_whole=True)


def check_axes(axes: Any, *, owner: str) -> None:
    """Checks that `axes` maps fields of `Layout` to tuples of values of their types; `owner` names the space in errors.

    Raises:
        ValueError: it does not.
    """
    if not isinstance(axes, Mapping):
        raise ValueError(f"axes of {owner} must be a mapping, such as {{'engine': ('fsdp',)}}, got {shortened(axes)}")
    for axis, values in axes.items():  # type: ignore[reportUnknownVariableType]
        _check_name(axis, Layout, f"{owner} has an axis")
        if not isinstance(values, (tuple, list)):
            raise ValueError(f"axis {axis} of {owner} must be a tuple, as in ({shortened(values)},), got no tuple")
        if not values:
            raise ValueError(f"axis {axis} of {owner} has no values")
        for value in values:  # type: ignore[reportUnknownVariableType]
            check_value(axis, value, Layout, subject=f"axis {axis} of {owner}")


def check_fields(fields: Any, kind: type, *, owner: str) -> None:
    """Checks that `fields` maps names of fields of `kind` to values of their types; `owner` names the space in errors.

    Raises:
        ValueError: it does not.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"the {kind.__name__.lower()} of {owner} must be a mapping, got {shortened(fields)}")
    for name, value in fields.items():  # type: ignore[reportUnknownVariableType]
        _check_name(name, kind, f"{owner} sets")
        check_value(name, value, kind, subject=f"{name} of {owner}")


def check_recipe(recipe: Any, *, owner: str) -> None:
    """Checks that `recipe` is a `Recipe` whose fields have their types; `owner` names the space in errors.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(recipe, Recipe):
        raise ValueError(f"{owner} needs Recipes to train, got {shortened(recipe)}")
    for value in (recipe, recipe.model) if recipe.has_model else (recipe,):
        for name in _hints(type(value)):
            check_value(name, getattr(value, name), type(value), subject=f"{name} of {owner}")


def check_value(name: str, value: Any, kind: type, *, subject: str) -> None:
    """Checks that `value` has the type of field `name` of `kind`; `subject` names it in errors.

    Raises:
        ValueError: it has another type.
    """
    hint = _hints(kind)[name]
    if typing.get_origin(hint) is typing.Literal:
        names = typing.get_args(hint)
        if not isinstance(value, str) or value not in names:
            like = spelling_hint(value, names) if isinstance(value, str) else ""
            raise ValueError(f"{subject} has no value {shortened(value)}{like} (it takes {', '.join(names)})")
    elif hint in (int, str) and type(value) is not hint:
        raise ValueError(f"{subject} must be {'a whole number' if hint is int else 'text'}, got {shortened(value)}")
    elif hint is float and type(value) not in (int, float):
        raise ValueError(f"{subject} must be a number, got {shortened(value)}")
    if name == "engine" and kind is Layout:
        try:
            rules_of(value)
        except ValueError as error:
            raise ValueError(f"{subject}: {error}") from error


def check_number(value: Any, *, subject: str, is_whole: bool = False, optional: bool = False) -> None:
    """Checks that `value` is a number: a whole number if `is_whole`, possibly None if `optional`.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int and not (type(value) is float and not is_whole) and not (optional and value is None):
        raise ValueError(f"{subject} must be a {'whole ' if is_whole else ''}number, got {shortened(value)}")


def _check_name(name: Any, kind: type, description: str) -> None:
    fields = list(_hints(kind))
    if name not in fields:
        like = spelling_hint(name, fields) if isinstance(name, str) else ""
        raise ValueError(f"{description} {shortened(name)} that no {kind.__name__.lower()} has{like}")
