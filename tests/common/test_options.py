"""A command's options are declared once: parser, value and help follow from the fields of a frozen dataclass."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any, Literal

import pytest

from platform.common.errors import InputError
from platform.common.options import CommandParser, argument, json_field, option
from platform.common.quantities import amount
from scripts.pages.options import COMMANDS


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    steps: int = option(metavar="N", group="how", about="how many")
    axes: tuple[str, ...] = option((), names=("--set",), repeated=True, group="what", about="values of an axis")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    names: tuple[str, ...] = argument(nargs="+", about="what is meant")
    timing: Timing
    kind: Literal["a", "b"] | None = option(None, about="which kind")
    tokens: float | None = option(None, read=amount, about="how many tokens")
    folder: Path = option(text=lambda: "here", then=lambda path: path / "inner", about="where (default: %(default)s)")
    json: bool = json_field(group="how")


PARSER = CommandParser(Options, prog="command", description="Does something.")


def test_every_field_is_read_into_its_place() -> None:
    assert PARSER.read(["x", "y", "--steps", "3"]) == Options(
        names=("x", "y"), timing=Timing(steps=3), folder=Path("here/inner")
    )
    arguments = [
        "x",
        "--steps=3",
        "--set",
        "a=1",
        "--set",
        "b=2",
        "--kind",
        "b",
        "--tokens",
        "2B",
        "--folder",
        "z",
        "--json",
    ]
    assert PARSER.read(arguments) == Options(
        names=("x",),
        timing=Timing(steps=3, axes=("a=1", "b=2")),
        kind="b",
        tokens=2e9,
        folder=Path("z/inner"),
        json=True,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "the following arguments are required: names, --steps"),
        (("x", "--steps", "three"), "argument --steps: invalid int value: 'three'"),
        (("x", "--steps", "3", "--kind", "c"), "argument --kind: invalid choice: 'c' (choose from 'a', 'b')"),
        (
            ("x", "--steps", "3", "--tokens", "0"),
            "argument --tokens: must be a number above 0, as in 2e9, 300M or 100B",
        ),
        (("x", "--steps"), "argument --steps: expected one argument; one that begins with - is written --OPTION=VALUE"),
        (("x", "--step", "3"), "the following arguments are required: --steps"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        PARSER.read(arguments)
    assert str(raised.value).startswith(sentence) and str(raised.value).endswith("(--help lists the options)")


def test_help_lists_groups_in_order_with_defaults() -> None:
    text = PARSER.format_help()
    assert text.index("\nhow:") < text.index("  --steps N") < text.index("  --json") < text.index("\nwhat:")
    assert "where (default: here)" in " ".join(text.split()) and "{a,b}" in text


@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_s_options_are_a_frozen_value(module: str) -> None:
    parser: Any = importlib.import_module(module).PARSER
    assert isinstance(parser, CommandParser)
    kind: Any = parser._kind  # pyright: ignore[reportPrivateUsage]
    assert kind.__dataclass_params__.frozen
