"""The page's parts as values, which `page.html` lays out: headings, paragraphs, figures, charts and tables."""

import dataclasses
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import Any

from platform.report.table import Table, TablePart


@dataclasses.dataclass(frozen=True, slots=True)
class Heading:
    """A heading inside a section."""

    heading: str


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; a note is in small print."""

    text: str
    note: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Figures side by side, each a name with its value."""

    facts: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Charts:
    """Charts in as many columns as the screen has room for, each a caption with an SVG."""

    charts: Sequence[tuple[str, str]]


Block = Heading | Paragraph | Facts | Charts | Table[Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section of the page, left out where it has no content."""

    id: str
    title: str
    blocks: Sequence[Block]


def headed(name: str, among: Sized) -> list[Block]:
    """Returns a heading with the name where it is one of several."""
    return [Heading(name)] if len(among) > 1 else []


def blocks_of(parts: Iterable[TablePart]) -> list[Block]:
    """Returns the tables of a terminal's report for a page."""
    return [
        block
        for part in parts
        for block in (Heading(": ".join(part.heads)), part.table, *(Paragraph(note, note=True) for note in part.notes))
    ]


def document(title: str, subtitle: str, sections: Iterable[Section], *, refresh_s: int | None = None) -> str:
    """Returns the whole page, with links to its sections. All text is escaped; charts are taken as they are."""
    # Imported here, as matplotlib is: a report without a page need not wait for it.
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    filled = [section for section in sections if section.blocks]
    return environment.get_template("page.html").render(
        title=title, subtitle=subtitle, sections=filled, refresh_s=refresh_s
    )
