"""Lays out tables and sentences as terminal text with rich."""

import io
from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.table import box
from rich.text import Text

from platform.report.table import Table, TablePart
from trainers.records.measurement import Outcome

STYLES = {
    Outcome.OK: "",
    Outcome.THRASH: "yellow",
    Outcome.SLOW: "dim",
    Outcome.SKIPPED: "dim",
}
"""Row style by outcome. Other outcomes are failures and use `FAILED`."""
FAILED = "red"


def console(*, width: int, color: bool) -> tuple[Console, io.StringIO]:
    """Returns a console that writes into a string stream, without emoji or markup, and the stream."""
    stream = io.StringIO()
    terminal = Console(
        file=stream,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    return terminal, stream


def as_text(stream: io.StringIO) -> str:
    """Returns the written text, without blanks at line ends; "" if nothing was written."""
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def laid_out(table: Table[Any], *, gap: int = 2, ruled: bool = True) -> Grid:
    """Returns rich's form of a table: `gap` characters between columns; if `ruled`, a rule below the titles."""
    edge = box.SIMPLE_HEAD if ruled else None
    grid = Grid(box=edge, pad_edge=False, padding=(0, gap - ruled, 0, 0), show_edge=False)
    for column in table.columns:
        grid.add_column(
            column.title,
            justify="left" if column.left else "right",
            vertical="top",
            no_wrap=not column.fold,
            min_width=column.fold or None,
            overflow="fold" if column.fold else "ellipsis",
        )
    for row in table.rows:
        cells = (Text(column.text(row), style=column.style(row)) for column in table.columns)
        grid.add_row(*cells, style=table.style(row))
    return grid


def rendered(parts: Iterable[TablePart], *, width: int, color: bool = False) -> str:
    """Returns the parts below each other, at most `width` columns wide; "" without parts."""
    screen, stream = console(width=width, color=color)
    for part in parts:
        table, notes = part.table, part.notes
        if part.narrow is not None and _narrowest(table) > width:
            table, notes = part.narrow, part.narrow_notes
        for number, head in enumerate(part.heads):
            screen.print(head, style=None if number else "bold")
        screen.print(laid_out(table))
        for line in ("", *notes, ""):
            screen.print(line)
    return as_text(stream)


def _narrowest(table: Table[Any]) -> int:
    """Returns the width in characters of a table whose folding columns have their least width."""
    widths = [
        column.fold or max(cell_len(line) for text in (column.title, *texts) for line in text.splitlines() or [""])
        for column, *texts in zip(table.columns, *table.texts, strict=True)
    ]
    return sum(widths) + 2 * (len(widths) - 1)
