"""Converts frozen values to JSON and back, and computes the hash that identifies a value.

A value is a frozen dataclass whose fields are numbers, strings, enums, tuples, mappings or other dataclasses of this
kind.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import marshal
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")
_PLAIN = frozenset((str, int, float, bool, type(None)))
UNLIKE = "unlike"
"""Key of a field's metadata. Set it where values differ in every record: equal decoded values are not looked up and
shared.
"""


def to_json(value: Any) -> Any:
    """Returns the JSON form of a value: dataclasses become objects, tuples arrays, enums their value."""
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
    """Returns the value of dataclass `kind` that `to_json` wrote as `data`.

    A field missing from `data` takes its default, so older records stay readable. Equal nested dataclasses decode to
    one shared object across all calls, unless their field is marked `UNLIKE`: a journal repeats the same recipe, layout
    and conditions in most lines.

    Raises:
        ValueError: `data` is not an object, has an unknown field, lacks a field without a default, or has a value of
            the wrong type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} must be a JSON object, got {_shortened(data)}")
    values = dict(data)
    for name, plain, decode in _fields(kind):
        if name not in values or type(values[name]) in plain:
            continue
        if decode is None:
            raise ValueError(f"{kind.__name__}: {name} must be {_words(plain)}, got {_shortened(values[name])}")
        try:
            values[name] = decode(values[name])
        except (_WrongTypeError, TypeError, OverflowError) as error:
            raise ValueError(f"{kind.__name__}: {name} {error}") from error
    try:
        return kind(**values)
    except TypeError as error:
        fields = dataclasses.fields(kind)  # type: ignore[reportArgumentType]
        names = [field.name for field in fields]
        unknown = sorted(set(values) - set(names))
        if unknown:
            mistake = f"has no field {', '.join(unknown)}; its fields are {', '.join(names)}"
            raise ValueError(f"{kind.__name__} {mistake}") from error
        needed = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
        if lacking := [name for name in needed if name not in values]:
            raise ValueError(f"{kind.__name__} lacks {', '.join(lacking)}") from error
        raise ValueError(f"{kind.__name__}: {error}") from error


class _WrongTypeError(ValueError):
    """A field's value has the wrong type; the text continues a sentence that begins with the field's name."""


_Decode = Callable[[Any], Any]
_Plain = frozenset[type]
_WORDS: Mapping[type, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"
}  # fmt: skip


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, _Plain, _Decode | None], ...]:
    """Returns for each field its name, the JSON types taken unchanged, and the function that decodes other types.

    Cached per kind, because a journal's line has 60 fields.
    """
    hints = typing.get_type_hints(kind)
    fields: list[tuple[str, _Plain, _Decode | None]] = []
    for field in dataclasses.fields(kind):
        plain, decode = _reader(hints[field.name])
        if field.metadata.get(UNLIKE):
            decode = functools.partial(from_json, hints[field.name])
        if plain is not _ANY:
            fields.append((field.name, plain, decode))
    return tuple(fields)


_ANY: _Plain = frozenset({object})


def _reader(hint: Any) -> tuple[_Plain, _Decode | None]:
    """Returns the JSON types that are valid for `hint` unchanged, and the function that decodes others, or None."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _ANY, None
    if origin in (typing.Union, types.UnionType):
        plain, decodes = zip(*map(_reader, args), strict=True)
        (decode, *others) = [arg_decode for arg_decode in decodes if arg_decode is not None] or [None]
        assert not others, f"{hint} has several kinds of values that are made from JSON"
        return frozenset().union(*plain), decode
    if origin is typing.Literal:
        return frozenset(), functools.partial(_one_of, args)
    if origin is tuple:
        return frozenset(), _of_tuple(args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return frozenset(), functools.partial(_mapping, *map(_reader, args))
    if hint is float:
        return frozenset({float}), _as_float
    if hint is int:
        return frozenset(), _as_whole
    if hint in _PLAIN:
        return frozenset({hint}), None
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return frozenset(), functools.partial(_one_of_each, hint, {})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return frozenset(), hint
    raise TypeError(f"{hint} cannot be read from JSON")


def _of_tuple(inner: tuple[Any, ...]) -> _Decode:
    readers = [_reader(hint) for hint in inner if hint is not ...]
    if inner[-1] is not ...:

        def read_each(items: Any) -> tuple[Any, ...]:
            if len(_listed(items)) != len(readers):
                raise _WrongTypeError(f"must be a list of {len(readers)}, got {len(items)} values")
            return tuple(_item(*reader, item) for reader, item in zip(readers, items, strict=True))

        return read_each
    plain, decode = readers[0]

    def read(items: Any) -> tuple[Any, ...]:
        if plain.issuperset(map(type, _listed(items))):
            return tuple(items)
        return tuple(_item(plain, decode, item) for item in items)

    return read


def _listed(items: Any) -> Sequence[Any]:
    if isinstance(items, (list, tuple)):
        return items  # type: ignore[reportUnknownVariableType]
    raise _WrongTypeError(f"must be a list, got {_shortened(items)}")


def _mapping(keys: tuple[_Plain, _Decode | None], values: tuple[_Plain, _Decode | None], items: Any) -> dict[Any, Any]:
    if not isinstance(items, Mapping):
        raise _WrongTypeError(f"must be an object, got {_shortened(items)}")
    return {_item(*keys, key): _item(*values, item) for key, item in items.items()}  # type: ignore[reportUnknownVariableType]


def _item(plain: _Plain, decode: _Decode | None, item: Any) -> Any:
    if type(item) in plain or plain is _ANY:
        return item
    if decode is None:
        raise _WrongTypeError(f"must be {_words(plain)}, got {_shortened(item)}")
    return decode(item)


def _one_of(values: tuple[Any, ...], item: Any) -> Any:
    if any(type(item) is type(value) and item == value for value in values):
        return item
    raise _WrongTypeError(f"must be one of {', '.join(map(str, values))}, got {_shortened(item)}")


def _as_float(item: Any) -> float:
    if isinstance(item, (int, float)) and type(item) is not bool:
        return float(item)
    raise _WrongTypeError(f"must be a number, got {_shortened(item)}")


def _as_whole(item: Any) -> int:
    if type(item) is not int:
        raise _WrongTypeError(f"must be a whole number, got {_shortened(item)}")
    if not -(2**63) <= item < 2**63:  # larger numbers do not fit the tables made of measurements
        raise _WrongTypeError(f"must be a whole number of at most 64 bits, got {_shortened(item)}")
    return item


def _words(plain: _Plain) -> str:
    return " or ".join(word for kind, word in _WORDS.items() if kind in plain)


def _shortened(item: Any) -> str:
    """Returns a value as an error shows it; for an object or a list only its kind."""
    if isinstance(item, Mapping):
        return "an object"
    return "a list" if isinstance(item, (list, tuple)) else shortened(item)


_MOST_KEPT = 1 << 16  # a large study plans some thousand layouts, and measures each at several batch points


def _one_of_each(kind: type, values: dict[bytes, Any], item: Any) -> Any:
    """Returns the decoded `item`; equal items give the same object."""
    key = marshal.dumps(item, 2)  # several times as fast as any text; without references, which depend on more than it
    value = values.get(key)
    if value is None:
        if len(values) >= _MOST_KEPT:
            values.clear()
        value = values[key] = from_json(kind, item)
    return value


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def identity(value: Any) -> str:
    """Returns 12 hex digits of SHA-256 over the canonical JSON of the fields that define `value`.

    Fields with `metadata={"cosmetic": True}` (names, notes) are left out, so renaming does not change the hash. Fields
    with `metadata={"later": True}` are left out at their default, so adding a field does not change hashes stored in
    journals.
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


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROLS_IN_JSON = re.compile(rb"\\u00[0189]|\\u007[fF]|\\[bfr]|\x7f|\xc2[\x80-\x9f]")
"""Matches every form in which JSON bytes can hold a control character."""


def printable(text: str) -> str:
    """Returns the text with control characters escaped, so that a terminal does not execute them; line breaks and tabs
    stay.
    """
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def shown(data: bytes, value: Any) -> Any:
    """Returns `value`, which was decoded from the JSON `data`, with all of its texts made `printable`."""
    # Most lines of a journal have none of these bytes, and a search for one takes a fifteenth of the pattern's time.
    if not any(byte in data for byte in (b"\\", b"\x7f", b"\xc2")):
        return value
    return _shown(value) if _CONTROLS_IN_JSON.search(data) else value


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value


def json_object(text: str | bytes) -> dict[str, Any]:
    """Returns the JSON object in a text in memory; `records.plain_files.read_json` reads one from a file.

    Raises:
        ValueError: the text is not a JSON object; the message is a clause that begins with "it".
    """
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode(), parse_int=_whole_number, object_pairs_hook=_object
        )
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(str(error) if text.strip() else "it is empty") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds {_KINDS.get(type(value), 'a number')} where a JSON object is expected")
    return typing.cast(dict[str, Any], value)


def _whole_number(digits: str) -> int:
    try:
        return int(digits)
    except ValueError as error:  # Python limits the number of digits
        raise ValueError(f"it holds a number of {len(digits):,} digits") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the JSON object of `pairs`; refuses a key with two different values, because JSON readers differ in which
    one they take.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        for key, value in pairs:
            if value != values[key]:
                both = f"{shortened(value)} and as {shortened(values[key])}"
                raise ValueError(f"it states {shortened(key)} as {both}: keep one of them")
    return values


_KINDS = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
