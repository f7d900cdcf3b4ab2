"""A rich console that writes into a string, and the style of rows by outcome."""

import io

from rich.console import Console

from trainers.records.measurement import Outcome

STYLES = {
    Outcome.OK: "",
    Outcome.THRASH: "yellow",
    Outcome.SLOW: "dim",
    Outcome.SKIPPED: "dim",
}
"""Style of a row by outcome; outcomes not listed are failures, in red."""


def console(*, width: int, color: bool) -> tuple[Console, io.StringIO]:
    """Returns a console that writes into a string, without emoji or markup, and that string's stream."""
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
    """Returns what was written, without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
