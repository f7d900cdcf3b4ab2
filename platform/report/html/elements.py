"""The page's elements as values, which `page.html` lays out: headings, paragraphs, facts, charts and tables."""

import dataclasses
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import Any

from platform.report.table import Table, TablePart


@dataclasses.dataclass(frozen=True, slots=True)
class Heading:
    heading: str


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; `note` selects small print."""

    text: str
    note: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Figures side by side: names with values."""

    facts: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Charts:
    """Charts in as many columns as fit on the screen: captions with SVG."""

    charts: Sequence[tuple[str, str]]


Block = Heading | Paragraph | Facts | Charts | Table[Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section of the page; it is left out if it has no blocks."""

    id: str
    title: str
    blocks: Sequence[Block]


def headed(name: str, among: Sized) -> list[Block]:
    return [Heading(name)] if len(among) > 1 else []


def blocks_of(parts: Iterable[TablePart]) -> list[Block]:
    """Returns the page's form of the tables of a terminal report."""
    return [
        block
        for part in parts
        for block in (Heading(": ".join(part.heads)), part.table, *(Paragraph(note, note=True) for note in part.notes))
    ]


def document(title: str, subtitle: str, sections: Iterable[Section], *, refresh_s: int | None = None) -> str:
    """Returns the whole page, with links to its sections. Text is escaped; charts are inserted unchanged."""
    # Imported here, like matplotlib, to save its time in reports without a page.
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    filled = [section for section in sections if section.blocks]
    return environment.get_template("page.html").render(
        title=title, subtitle=subtitle, sections=filled, refresh_s=refresh_s
    )
