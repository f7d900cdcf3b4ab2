"""The forms of the objects that `--json` prints: a `TypedDict` for each object, a docstring for each key.

Commands print them by `print_json` alone, which states the version of the form. Within a version keys are added, and
none is removed or changes its meaning.
"""

import dataclasses
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

SCHEMA = 1
"""The version of all forms, the value of the key `schema`."""
_Form = TypeVar("_Form", bound=type)
_FURTHER: dict[type, tuple[type, bool]] = {}
"""The class whose keys a form has beside its own, and whether they may be left out, by form."""


def with_schema(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the object with the version of its form in front."""
    return {"schema": SCHEMA, **value}


def print_json(value: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Prints the object with the version of its form."""
    print(json.dumps(with_schema(value), indent=indent, allow_nan=False))


def with_fields_of(kind: type, *, optional: bool = False) -> Callable[[_Form], _Form]:
    """Adds to a form, whose own keys count, those of another or the fields of a dataclass as `to_json` writes them;
    with `optional` they may be left out.
    """

    def declared(form: _Form) -> _Form:
        _FURTHER[form] = kind, optional
        return form

    return declared


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A key of a form."""

    hint: Any
    """Type of its value."""
    required: bool = True


def keys_of(form: type) -> dict[str, Key]:
    """Returns the keys of a form, or of a dataclass that is written as JSON, by name."""
    names: Iterable[str] = form.__annotations__
    required = getattr(form, "__required_keys__", frozenset[str]())
    if dataclasses.is_dataclass(form):
        names = required = [field.name for field in dataclasses.fields(form)]
    hints = typing.get_type_hints(form)
    direct = {name: Key(hint=hints[name], required=name in required) for name in names}
    kind, optional = further(form)
    further_keys = {} if kind is None else keys_of(kind)
    return {
        name: Key(hint=key.hint, required=key.required and not optional) for name, key in further_keys.items()
    } | direct


def further(form: type) -> tuple[type | None, bool]:
    """Returns the class whose keys a form has too, None for none, and whether they may be left out."""
    return _FURTHER.get(form, (None, False))
