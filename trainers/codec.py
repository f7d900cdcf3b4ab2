"""Frozen values to JSON and back, and the hash that is a value's identity.

A value is a frozen dataclass of numbers, strings, enums, tuples, mappings and other such dataclasses.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


def to_json(value: Any) -> Any:
    """The JSON form of a value: dataclasses become objects, tuples become arrays, enums their value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def from_json(kind: type[_T], data: Any) -> _T:
    """The value of dataclass `kind` that `to_json` wrote as `data`.

    A field missing from `data` takes its default, so older records stay readable.

    Raises:
        ValueError: `data` is not an object, or has a field that `kind` lacks, or lacks one without a default.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} wants a JSON object, got {type(data).__name__}")
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {', '.join(unknown)}; its fields are {', '.join(hints)}")
    try:
        return kind(**{name: _decode(hints[name], item) for name, item in data.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _decode(hint: Any, item: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if item is None:
            return None
        return _decode(next(arg for arg in typing.get_args(hint) if arg is not type(None)), item)
    if origin is tuple and item is not None:
        inner = typing.get_args(hint)
        if len(inner) == 2 and inner[1] is ...:
            return tuple(_decode(inner[0], each) for each in item)
        return tuple(_decode(each_hint, each) for each_hint, each in zip(inner, item, strict=True))
    if isinstance(hint, type):
        if dataclasses.is_dataclass(hint):
            return from_json(hint, item)
        if issubclass(hint, enum.Enum):
            return hint(item)
        if hint is float and isinstance(item, int) and not isinstance(item, bool):
            return float(item)
    return item


def identity(value: Any) -> str:
    """12 hex digits of SHA-256 over the canonical JSON of what defines `value`.

    Fields declared with `metadata={"cosmetic": True}` (names, notes) are left out, so renaming changes nothing.
    """
    text = json.dumps([type(value).__name__, _defining(value)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _defining(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _defining(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.metadata.get("cosmetic")
        }
    return to_json(value)
