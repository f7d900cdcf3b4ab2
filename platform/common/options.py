"""Command options declared once: the fields of a frozen dataclass give the parser, the value and the reference page.

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
import itertools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from platform.common.config_file import near, read_config, words_of
from platform.common.errors import InputError, Parser
from trainers.records.trust import check_owner

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """The declaration of one option or argument. The field gives its name and, by default, its type and choices."""

    about: str
    """Help text; `%(default)s` is replaced by the default."""
    read: Callable[[str], Any] | None = None
    """Converts the text; raises `argparse.ArgumentTypeError`. None: the field's type converts it."""
    metavar: str | tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()
    """The allowed texts; empty if the field's `Literal` type lists them."""
    names: tuple[str, ...] = ()
    """Spellings such as ("-v", "--verbose"); empty for one derived from the field's name."""
    nargs: str | int | None = None
    repeated: bool = False
    """Whether the option may be given several times."""
    group: str = ""
    """Title under which `--help` lists the option; empty for argparse's own groups."""
    text: Callable[[], str] | None = None
    """Returns the default as text, computed when the parser is built; None for the field's default."""
    least: int | None = None
    """The smallest allowed value, checked after parsing."""
    then: Callable[[Any], Any] | None = None
    """Converts a value that is not None after parsing; raises `InputError`."""
    is_argument: bool = False
    in_files: Literal["too", "alone", "never"] = "too"
    """Whether the `--config` file may set the option: "too" (as the command line), "alone" (only there), "never"."""


def option(default: Any = dataclasses.MISSING, *, about: str, **declared: Any) -> Any:
    """Returns a dataclass field for an option. The option is required if it has neither a default nor a `text`."""
    return dataclasses.field(default=default, metadata={"option": Option(about=about, **declared)})


def argument(default: Any = dataclasses.MISSING, *, about: str, **declared: Any) -> Any:
    return option(default, about=about, is_argument=True, **declared)


def json_field(**declared: Any) -> Any:
    return option(False, about="print the result as JSON, alone on standard output", **declared)


def markdown_field(**declared: Any) -> Any:
    return option(False, about="print the result as Markdown, alone on standard output", **declared)


def setting(default: Any = dataclasses.MISSING, *, about: str, **declared: Any) -> Any:
    """Returns a dataclass field for an option that can only be set in the `--config` file."""
    return option(default, about=about, in_files="alone", **declared)


def config_field(**declared: Any) -> Any:
    """Returns the field of `--config`, whose file `CommandParser.read` reads."""
    about = "read options from a YAML file; none may be given in both places (docs/search.md)"
    return option(None, metavar="FILE", about=about, in_files="never", **declared)


def address_field(**declared: Any) -> Any:
    about = (
        'Ray cluster to run on, or "local" to start one (default: RAY_ADDRESS, else the one that this machine heads)'
    )
    return option(None, metavar="HOST:PORT", about=about, **declared)


class CommandParser(Parser, Generic[Value]):
    """Parser of a command whose options are the fields of dataclass `kind`, including those of nested dataclasses."""

    def __init__(self, kind: type[Value], *, prog: str, description: str | None, epilog: str | None = None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter if "\n" in (description or "") else argparse.HelpFormatter
        super().__init__(prog=prog, description=description, epilog=epilog, formatter_class=formatter)
        self._kind = kind
        groups: dict[str, Any] = {"": self}
        for field, hint in _fields(kind):
            declared: Option = field.metadata["option"]
            if declared.in_files == "alone":
                continue
            if declared.group not in groups:
                groups[declared.group] = self.add_argument_group(declared.group)
            names, settings = _argument(field, hint, declared)
            groups[declared.group].add_argument(*names, **settings)

    def read(self, arguments: Sequence[str] | None = None) -> Value:
        """Returns the parsed options; `arguments` defaults to those of the process.

        Raises:
            InputError: an argument is unknown or a value is invalid.
        """
        words = list(sys.argv[1:] if arguments is None else arguments)
        files = [
            text for field, _ in _fields(self._kind) for text in _values_of(words, field) if field.name == "config"
        ]
        if len(files) > 1:
            raise InputError("--config is given twice: keep one file")
        return self._with_file(words, Path(files[0])) if files else _value(self._kind, vars(self.parse_args(words)))

    def _with_file(self, words: list[str], path: Path) -> Value:
        """Returns the options given by the command-line words and a `--config` file.

        Raises:
            InputError: the words or the file have a mistake, or an option is in both.
        """
        typed = self._typed(words)
        if any(field.name == "trust" for field, _ in _fields(self._kind)):
            check_owner((path,), trusted="trust" in typed)
        arguments, read, alone = list[str](), list[str](), dict[str, Any]()
        by_key = {key: (field, hint) for field, hint in _fields(self._kind) for key in _keys(field)}
        written: dict[str, str] = {}
        for key, value in read_config(path).items():
            if key not in by_key:
                raise InputError(f"{path} has {key}, which is no option{near(key, by_key)}")
            field, hint = by_key[key]
            declared: Option = field.metadata["option"]
            spelt = _names(field, declared)[0]
            if declared.in_files == "never":
                raise InputError(f"{path} has {key}, which stands on the command line alone: leave it out")
            if field.name in written:
                raise InputError(f"{path} gives {written[field.name]} and {key}, one option twice: keep one of them")

            if field.name in typed:
                raise InputError(f"{spelt} is given twice, by {path} too: leave one of them out")
            written[field.name] = key
            try:
                option_words = words_of(spelt, value, kind=_kind_of(field, hint))
            except ValueError as error:
                raise InputError(f"{path}: {key} {error}") from error
            if declared.in_files == "alone":
                alone[field.name] = option_words[1:] if isinstance(value, list) else option_words[0].partition("=")[2]
            elif declared.is_argument:
                arguments += option_words[1:] if isinstance(value, list) else [option_words[0].partition("=")[2]]
            else:
                read += option_words
        try:
            return _value(self._kind, vars(self.parse_args([*arguments, *read, *words])) | alone)
        except InputError as error:  # the words alone were parsed without error above
            raise InputError(f"{path}: {error}") from error

    def _typed(self, words: Sequence[str]) -> set[str]:
        """Returns the names of the fields that the words set."""
        parser = Parser(add_help=False, argument_default=argparse.SUPPRESS)
        for field, hint in _fields(self._kind):
            declared: Option = field.metadata["option"]
            if declared.in_files == "alone":
                continue
            names, settings = _argument(field, hint, declared)
            settings.pop("default", None)
            if declared.is_argument:
                settings |= {"nargs": "*"}
            else:
                settings |= {"required": False}
            parser.add_argument(*names, **settings)
        return {name for name, value in vars(parser.parse_args(words)).items() if value != []}


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fields(kind: Any) -> Iterable[tuple[dataclasses.Field[Any], Any]]:
    """Yields the fields of all options with their types, in order, including those of nested dataclasses."""
    for field in dataclasses.fields(kind):
        hint = _hints(kind)[field.name]
        if "option" in field.metadata:
            yield field, hint
        elif dataclasses.is_dataclass(hint):
            yield from _fields(hint)


def _names(field: dataclasses.Field[Any], declared: Option) -> tuple[str, ...]:
    return (field.name,) if declared.is_argument else declared.names or (f"--{field.name.replace('_', '-')}",)


def _keys(field: dataclasses.Field[Any]) -> set[str]:
    """Returns the keys by which a `--config` file may set a field: its name and its spellings."""
    names = _names(field, field.metadata["option"])
    return {field.name, *(name.lstrip("-").replace("-", "_") for name in names)}


def _kind_of(field: dataclasses.Field[Any], hint: Any) -> str:
    """Returns how many values the option takes, as the `kind` of `words_of`."""
    declared: Option = field.metadata["option"]
    if hint is bool:
        return "switch"
    if declared.repeated:
        return "repeated"
    if declared.nargs in ("+", "*", 2) or (declared.in_files == "alone" and typing.get_origin(hint) is tuple):
        return "several"
    return "joined" if typing.get_origin(hint) is tuple else "one"


def _values_of(words: Sequence[str], field: dataclasses.Field[Any]) -> list[str]:
    """Returns the values given to a single-value option by the words, as `--NAME VALUE` or `--NAME=VALUE`."""
    name = _names(field, field.metadata["option"])[0]
    apart = [value for word, value in itertools.pairwise(words) if word == name]
    return apart + [word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")]


def non_default(value: Any, default: Any) -> dict[str, Any]:
    """Returns the options of `value` that differ from `default`, by field name, as a `--config` file may hold them.

    Options that a `--config` file must not set are left out.
    """
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        declared: Option | None = field.metadata.get("option")
        if declared is not None and declared.in_files != "never":
            item = getattr(value, field.name)
            if item != getattr(default, field.name):
                changed[field.name] = item
    return changed


def _argument(field: dataclasses.Field[Any], hint: Any, declared: Option) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the names and keyword arguments of `add_argument` for an option."""
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
    """Returns dataclass `kind` filled from the parsed values by field name.

    Raises:
        InputError: a value is too small or is refused by its `then`.
    """
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        declared: Option | None = field.metadata.get("option")
        if declared is None:
            if dataclasses.is_dataclass(hint := _hints(kind)[field.name]):
                fields[field.name] = _value(hint, values)
            continue
        if declared.in_files == "alone" and field.name not in values:
            continue
        value: Any = values[field.name]
        if value is not None and declared.least is not None and value < declared.least:
            raise InputError(f"{_names(field, declared)[0]} must be at least {declared.least}, got {value}")
        if declared.then is not None and value is not None:
            value = declared.then(value)
        fields[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**fields)
