"""The page of every command's options, made from their parsers."""

# pyright: reportPrivateUsage=false

import argparse
import importlib
from collections.abc import Container, Iterator, Sequence

COMMANDS = (
    "platform.search.__main__", "platform.report.__main__", "platform.plan.__main__",
    "platform.search.rechecking.command",
    "platform.cluster.probing.command", "platform.train.preparing.command", "platform.train.__main__",
    "platform.train.converging.command", "platform.train.exporting.command", "platform.validate.__main__",
    "platform.validate.replaying.command", "platform.tracking.serve", "deploy.aws.prepare",
)  # fmt: skip
"""Modules with a `PARSER`, in the order of the page."""
_TOP = """# Options

What `--help` prints, without its examples. Tokens may be written as 2e9, 300M or 100B, durations as 90s, 10m, 1.5h or
2d. No option may be shortened. [axes.md](axes.md) has what `--set` takes.

Exit codes: 0; 1 nothing fits, or `--safe` refuses the winner; 2 bad input; 3 the cluster or a process is at fault; 4
not resolved which layout is the fastest; 130 interrupted.
"""


def page() -> str:
    parsers = [parser_of(name) for name in COMMANDS]
    commands: dict[str, list[str]] = {}
    for parser in parsers:
        for action in parser._actions:
            commands.setdefault(_row(action), []).append(parser.prog.rpartition(".")[2])
    shared = {row: names for row, names in commands.items() if len(names) > 1 and row}
    top = [_TOP, "| several commands | | which |\n|---|---|---|"]
    top += [*(f"{row} {', '.join(names)} |" for row, names in shared.items()), ""]
    return "\n".join([*top, *("\n".join(_section(parser, shared)) for parser in parsers)])


def parser_of(module: str) -> argparse.ArgumentParser:
    return importlib.import_module(module).PARSER


def _section(parser: argparse.ArgumentParser, shared: Container[str]) -> Iterator[str]:
    """Yields a command's section: its purpose, and its options by group."""
    yield f"## {parser.prog}\n"
    purpose = (parser.description or "").strip().partition("\n\n")[0]
    yield f"{purpose}\n"
    plain = [group for group in parser._action_groups if group.title in ("positional arguments", "options")]
    yield from _table("option", [group_action for group in plain for group_action in group._group_actions], shared)
    for group in parser._action_groups:
        if group not in plain:
            yield from _table(group.title or "", group._group_actions, shared)


def _table(title: str, actions: Sequence[argparse.Action], shared: Container[str]) -> Iterator[str]:
    """Yields a table with a row per option that is not shared; nothing if there is none."""
    if rows := [row for action in actions if (row := _row(action)) and row not in shared]:
        yield "\n".join([f"| {title} | |\n|---|---|", *rows, ""])


def _row(action: argparse.Action) -> str:
    """Returns the row of an option; "" for --help, which every command has."""
    if isinstance(action, argparse._HelpAction):
        return ""
    return f"| {_called(action)} | {_cell((action.help or '') % vars(action))} |"


def _called(action: argparse.Action) -> str:
    """Returns the option's names; the last one is followed by the placeholder of the value, as in `--gpus N[,N]`."""
    name = (
        ", ".join(f"`{option_string}`" for option_string in action.option_strings)
        or f"`{action.metavar or action.dest}`"
    )
    if not action.option_strings or action.nargs == 0:
        return _cell(name)
    metavar = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    return _cell(f"{name[:-1]} {' '.join(metavar) if isinstance(metavar, tuple) else metavar}`")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
