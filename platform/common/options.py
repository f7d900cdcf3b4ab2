"""The options of a command, declared once: a frozen dataclass from whose fields parser, value and page are made.

@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    names: tuple[str, ...] = argument(metavar="STUDY", about="a study's name")
    tokens: float | None = option(None, read=amount, metavar="N", about="tokens to train on")
    json: bool = option(False, about="print JSON")

parser = CommandParser(Options, prog="python -m platform.command")
options = parser.read(["bloom7b-1", "--tokens", "2B"])
"""

import argparse
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar

from platform.common.errors import InputError, Parser

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """The declaration of one option or argument. Its name, its choices and how it is read follow from its field."""

    about: str
    """The help of the option; `%(default)s` stands for its default."""
    read: Callable[[str], Any] | None = None
    """Reader of the text, which raises `argparse.ArgumentTypeError`; None for the field's type."""
    metavar: str | tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()
    """The allowed texts, where the field's type does not tell them."""
    names: tuple[str, ...] = ()
    """Spellings; empty for the field's name."""
    nargs: str | int | None = None
    repeated: bool = False
    """Whether it may be given several times."""
    group: str = ""
    """Title under which `--help` lists it; empty for argparse's own."""
    text: Callable[[], str] | None = None
    """Returns the text that is read where the option is not given, in place of the field's default."""
    least: int | None = None
    """The least value, checked once all are read."""
    then: Callable[[Any], Any] | None = None
    """Function of a value that is not None, called once all are read; it raises `InputError`."""
    is_argument: bool = False


def option(default: Any = dataclasses.MISSING, *, about: str, **declared: Any) -> Any:
    """Returns the field of an option, which must be given where it has neither a default nor a `text`."""
    return dataclasses.field(default=default, metadata={"option": Option(about=about, **declared)})


def argument(default: Any = dataclasses.MISSING, *, about: str, **declared: Any) -> Any:
    """Returns the field of a positional argument."""
    return option(default, about=about, is_argument=True, **declared)


def json_field(**declared: Any) -> Any:
    """Returns the field of `--json`."""
    return option(False, about="print the result as JSON, alone on standard output", **declared)


def markdown_field(**declared: Any) -> Any:
    """Returns the field of `--markdown`."""
    return option(False, about="print the result as Markdown, alone on standard output", **declared)


def address_field(**declared: Any) -> Any:
    """Returns the field of `--address`, the Ray that a command runs on."""
    about = 'Ray to run on, "local" for one of its own (default: RAY_ADDRESS, else the cluster whose head this is)'
    return option(None, metavar="HOST:PORT", about=about, **declared)


class CommandParser(Parser, Generic[Value]):
    """The parser of a command whose options are the fields of `kind`, those of fields that are such a class too."""

    def __init__(self, kind: type[Value], *, prog: str, description: str | None, epilog: str | None = None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter if "\n" in (description or "") else argparse.HelpFormatter
        super().__init__(prog=prog, description=description, epilog=epilog, formatter_class=formatter)
        self._kind = kind
        groups: dict[str, Any] = {"": self}
        for field, hint in _fields(kind):
            declared: Option = field.metadata["option"]
            if declared.group not in groups:
                groups[declared.group] = self.add_argument_group(declared.group)
            names, settings = _argument(field, hint, declared)
            groups[declared.group].add_argument(*names, **settings)

    def read(self, arguments: Sequence[str] | None = None) -> Value:
        """Returns the options of these arguments, those of the process where they are None.

        Raises:
            InputError: an argument is unknown, or a value is not one.
        """
        return _value(self._kind, vars(self.parse_args(arguments)))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fields(kind: Any) -> Iterable[tuple[dataclasses.Field[Any], Any]]:
    """Yields the fields of all options with their types, in order."""
    for field in dataclasses.fields(kind):
        hint = _hints(kind)[field.name]
        if "option" in field.metadata:
            yield field, hint
        elif dataclasses.is_dataclass(hint):
            yield from _fields(hint)


def _names(field: dataclasses.Field[Any], declared: Option) -> tuple[str, ...]:
    """Returns how an option or argument is spelt."""
    return (field.name,) if declared.is_argument else declared.names or (f"--{field.name.replace('_', '-')}",)


def _argument(field: dataclasses.Field[Any], hint: Any, declared: Option) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the names and settings of an option for `argparse`."""
    names = _names(field, declared)
    settings: dict[str, Any] = {"help": declared.about}
    if not declared.is_argument:
        settings |= {"dest": field.name, "required": field.default is dataclasses.MISSING and declared.text is None}
    if hint is bool:
        return names, {**settings, "action": "store_true"}
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    origin = typing.get_origin(hint)
    reader = str if origin is Literal else typing.get_args(hint)[0] if origin is tuple else hint
    settings |= {"type": declared.read or reader, "metavar": declared.metavar, "nargs": declared.nargs}
    if choices := declared.choices or (typing.get_args(hint) if origin is Literal else ()):
        settings["choices"] = choices
    if declared.repeated:
        settings |= {"action": "append", "default": []}
        del settings["nargs"]
    elif declared.text is not None:
        settings["default"] = declared.text()
    elif field.default is not dataclasses.MISSING:
        settings["default"] = field.default
    return names, settings


def _value(kind: Any, values: dict[str, Any]) -> Any:
    """Returns the dataclass of what was read."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        declared: Option | None = field.metadata.get("option")
        if declared is None:
            if dataclasses.is_dataclass(hint := _hints(kind)[field.name]):
                fields[field.name] = _value(hint, values)
            continue
        value: Any = values[field.name]
        if value is not None and declared.least is not None and value < declared.least:
            raise InputError(f"{_names(field, declared)[0]} must be at least {declared.least}, got {value}")
        if declared.then is not None and value is not None:
            value = declared.then(value)
        fields[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**fields)
