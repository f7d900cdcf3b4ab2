"""The page of every command's options, made from their parsers."""

# pyright: reportPrivateUsage=false

import argparse
import importlib
from collections.abc import Iterator, Sequence

COMMANDS = (
    "platform.search", "platform.report", "platform.plan", "platform.probe", "platform.prepare", "platform.train",
    "platform.converge", "platform.export", "platform.validate", "platform.replay", "platform.mirror.serve",
    "deploy.aws.prepare",
)  # fmt: skip
"""Modules that have a `parser()`, in the order of the page."""
_TOP = """# Options

What `--help` prints, for all commands. A number of tokens may be written as 2e9, 300M or 100B, a duration as 90s, 10m,
1.5h or 2d. No option may be shortened. [axes.md](axes.md) has what `--set` takes.
"""


def page() -> str:
    """Returns the page in Markdown."""
    return "\n".join([_TOP, *("\n".join(_section(parser_of(name))) for name in COMMANDS)])


def parser_of(module: str) -> argparse.ArgumentParser:
    """Returns the parser of a command's module."""
    return importlib.import_module(module).parser()


def _section(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields one command: its purpose, its options by group, its closing words."""
    yield f"## {parser.prog}\n"
    yield f"{(parser.description or '').strip()}\n"
    plain = [group for group in parser._action_groups if group.title in ("positional arguments", "options")]
    yield from _table("option", [each for group in plain for each in group._group_actions])
    for group in parser._action_groups:
        if group not in plain:
            yield from _table(f"option: {group.title}", group._group_actions)
    if parser.epilog:
        yield f"{parser.epilog}\n"


def _table(title: str, actions: Sequence[argparse.Action]) -> Iterator[str]:
    """Yields a row an option, without --help, which every command has; nothing where there is no other."""
    shown = [each for each in actions if not isinstance(each, argparse._HelpAction)]
    if shown:
        yield f"| {title} | what it means |\n|---|---|"
        yield from (f"| {_called(each)} | {_cell((each.help or '') % vars(each))} |" for each in shown)
        yield ""


def _called(action: argparse.Action) -> str:
    """Returns the option's names with their value: `--gpus N[,N]`; of several spellings the first shows it."""
    name = ", ".join(f"`{each}`" for each in action.option_strings) or f"`{action.metavar or action.dest}`"
    if not action.option_strings or action.nargs == 0:
        return _cell(name)
    metavar = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    return _cell(f"{name[:-1]} {' '.join(metavar) if isinstance(metavar, tuple) else metavar}`")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
