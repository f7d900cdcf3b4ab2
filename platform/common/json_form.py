"""The forms of the objects that `--json` prints: a `TypedDict` for each object, with a docstring for each key.

Commands print them through `print_json`, which adds the version of the form. Within a version keys may be added; no key
is removed or changes its meaning.
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
"""The class whose keys the form also has, and whether these keys are optional, by form."""


def with_schema(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, **value}


def print_json(value: Mapping[str, Any], *, indent: int | None = None) -> None:
    print(json.dumps(with_schema(value), indent=indent, allow_nan=False))


def with_fields_of(kind: type, *, optional: bool = False) -> Callable[[_Form], _Form]:
    """Adds to a form the keys of the `TypedDict` or dataclass `kind`, as `to_json` writes it; with `optional` they may
    be absent.

    A key that the form declares itself takes precedence.
    """

    def declared(form: _Form) -> _Form:
        _FURTHER[form] = kind, optional
        return form

    return declared


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    hint: Any
    """Type of the key's value."""
    required: bool = True


def keys_of(form: type) -> dict[str, Key]:
    """Returns the keys by name of a form or of a dataclass written as JSON, with those of `with_fields_of`."""
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
    """Returns the class that `with_fields_of` added to the form (None: none), and whether its keys are optional."""
    return _FURTHER.get(form, (None, False))
