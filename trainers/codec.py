"""Frozen values to JSON and back, and the hash that is a value's identity.

A value is a frozen dataclass of numbers, strings, enums, tuples, mappings and other such dataclasses.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import marshal
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_PLAIN = frozenset((str, int, float, bool, type(None)))
UNLIKE = "unlike"
"""In a field's metadata: no two records have the same value there, so none is kept for the next."""


def to_json(value: Any) -> Any:
    """The JSON form of a value: dataclasses become objects, tuples become arrays, enums their value."""
    if type(value) in _PLAIN:
        return value
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

    A field missing from `data` takes its default, so older records stay readable. Equal dataclasses in fields of `data`
    are one object, over all calls, unless the field is marked `UNLIKE`: a journal says the same recipe, layout and
    conditions again and again.

    Raises:
        ValueError: `data` is not an object, or has a field that `kind` lacks, or lacks one without a default.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} wants a JSON object, got {type(data).__name__}")
    values = dict(data)
    try:
        decoders, floats = _decoders(kind)
        for name, decode in decoders:
            if name in values:
                values[name] = decode(values[name])
        for name in floats:
            if type(values.get(name)) is int:
                values[name] = float(values[name])
        return kind(**values)
    except TypeError as error:
        fields = dataclasses.fields(kind)  # type: ignore[reportArgumentType]
        known = [field.name for field in fields]
        unknown = sorted(set(values) - set(known))
        if unknown:
            said = f"has no field {', '.join(unknown)}; its fields are {', '.join(known)}"
            raise ValueError(f"{kind.__name__} {said}") from error
        needed = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
        if lacking := [name for name in needed if name not in values]:
            raise ValueError(f"{kind.__name__} lacks {', '.join(lacking)}") from error
        raise ValueError(f"{kind.__name__}: {error}") from error


_Decode = Callable[[Any], Any]


@functools.cache
def _decoders(kind: type) -> tuple[tuple[tuple[str, _Decode], ...], tuple[str, ...]]:
    """Fields whose JSON is not yet their value, with what makes it, and apart from them the many that are floats.

    Found out once: a journal's line has 60 fields.
    """
    hints = typing.get_type_hints(kind)
    found = {
        field.name: functools.partial(from_json, hints[field.name])
        if field.metadata.get(UNLIKE)
        else _decoder(hints[field.name])
        for field in dataclasses.fields(kind)
    }
    floats = tuple(name for name, decode in found.items() if decode is _as_float)
    return tuple((name, decode) for name, decode in found.items() if decode and name not in floats), floats


def _decoder(hint: Any) -> _Decode | None:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        decode = _decoder(next(arg for arg in typing.get_args(hint) if arg is not type(None)))
        return decode if decode in (None, _as_float) else lambda item: None if item is None else decode(item)
    if origin is tuple:
        decode = _of_tuple(typing.get_args(hint))
        return lambda item: None if item is None else decode(item)
    if isinstance(hint, type):
        if dataclasses.is_dataclass(hint):
            return functools.partial(_one_of_each, hint, {})
        if issubclass(hint, enum.Enum):
            return hint
        if hint is float:
            return _as_float
    return None


def _of_tuple(inner: tuple[Any, ...]) -> _Decode:
    decoders = [_decoder(hint) or _as_it_is for hint in inner if hint is not ...]
    if inner[-1] is not ...:
        return lambda items: tuple(decode(item) for decode, item in zip(decoders, items, strict=True))
    decode = decoders[0]
    if decode is _as_float:
        return lambda items: tuple(map(decode, items)) if int in map(type, items) else tuple(items)
    return tuple if decode is _as_it_is else lambda items: tuple(map(decode, items))


def _as_it_is(item: Any) -> Any:
    return item


def _as_float(item: Any) -> Any:
    return float(item) if type(item) is int else item


_MOST_KEPT = 4096


def _one_of_each(kind: type, known: dict[bytes, Any], item: Any) -> Any:
    """The value of `item`; the one made before where the same was."""
    key = marshal.dumps(item, 2)  # several times as fast as any text; without references, which depend on more than it
    found = known.get(key)
    if found is None:
        if len(known) >= _MOST_KEPT:
            known.clear()
        found = known[key] = from_json(kind, item)
    return found


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def identity(value: Any) -> str:
    """12 hex digits of SHA-256 over the canonical JSON of what defines `value`.

    Fields declared with `metadata={"cosmetic": True}` (names, notes) are left out, so renaming changes nothing; so are
    those with `metadata={"later": True}` at their default, so that a new field leaves what stands in journals its name.
    """
    text = _CANONICAL.encode([type(value).__name__, _defining(value)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _defining(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _defining(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.metadata.get("cosmetic")
            and not (field.metadata.get("later") and getattr(value, field.name) == field.default)
        }
    return to_json(value)


def shortened(value: Any) -> str:
    """The value as code, cut where it is longer than a sentence bears."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
