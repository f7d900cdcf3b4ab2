"""The page's elements: sections, paragraphs, tables, and the frame around them."""

import dataclasses
import html
from collections.abc import Sequence

_STYLE = """
:root { color-scheme: light; --ink: #1f2937; --faint: #6b7280; --line: #e5e7eb; --good: #0f766e; }
* { box-sizing: border-box; }
body { margin: 0; padding: 1rem; color: var(--ink); background: #fff; line-height: 1.45;
  font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 74rem; margin: 0 auto; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 1rem 0 .25rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; max-width: 60rem; overflow-wrap: anywhere; }
.note { color: var(--faint); font-size: .85rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem .8rem; margin: .6rem 0; font-size: .9rem; }
a { color: var(--good); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1rem; }
.charts figure { margin: 0; max-width: 36rem; }
figcaption { font-size: .85rem; font-weight: 600; margin-bottom: .2rem; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
td.words, th.words { text-align: left; white-space: normal; min-width: 9rem; max-width: 24rem;
  overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; }
.facts div { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem .7rem; }
.facts b { display: block; font-size: 1.1rem; }
.facts span { color: var(--faint); font-size: .8rem; }
@media print { nav { display: none; } section { break-inside: avoid; } }
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section of the page, left out where it has no content."""

    id: str
    title: str
    body: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """A table's cell: its text, and its colours where they carry meaning."""

    text: str
    background: str = ""
    color: str = ""


def paragraph(text: str, *, note: bool = False) -> str:
    """Returns a paragraph; with `note` in small print."""
    return f"<p{' class=note' if note else ''}>{html.escape(text)}</p>\n"


def heading(text: str) -> str:
    """Returns a heading inside a section."""
    return f"<h3>{html.escape(text)}</h3>\n"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns figures side by side, each above its label."""
    boxes = "".join(f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in pairs)
    return f"<div class=facts>{boxes}</div>\n"


def figures(charts: Sequence[tuple[str, str]]) -> str:
    """Returns charts, each an SVG below its caption, in as many columns as the screen has room for."""
    charts_html = "".join(
        f"<figure><figcaption>{html.escape(name)}</figcaption>{svg}</figure>\n" for name, svg in charts
    )
    return f"<div class=charts>\n{charts_html}</div>\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str | TableCell]], *, words: int = 1) -> str:
    """Returns a table that scrolls by itself where the screen is narrow; the first `words` columns hold text, not
    figures.

    Columns without a single value are left out.
    """
    filled = [i for i in range(len(header)) if any(row[i] != "" for row in rows)]
    header, rows = [header[i] for i in filled], [[row[i] for i in filled] for row in rows]
    if not rows:
        return ""

    def kind(column: int) -> str:
        return " class=words" if column < words else ""

    head = "".join(f"<th{kind(i)}>{html.escape(title)}</th>" for i, title in enumerate(header))
    lines = ["".join(_cell(cell, kind(i)) for i, cell in enumerate(row)) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n"


def _cell(cell: str | TableCell, kind: str) -> str:
    if isinstance(cell, str):
        return f"<td{kind}>{html.escape(cell)}</td>"
    declared = {"background": cell.background, "color": cell.color}
    style = ";".join(f"{name}:{value}" for name, value in declared.items() if value)
    return f'<td{kind} style="{style}">{html.escape(cell.text)}</td>'


def document(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Returns the whole page, with links to its sections."""
    filled = [section for section in sections if section.body]
    links = "".join(f'<a href="#{section.id}">{html.escape(section.title)}</a>' for section in filled)
    body = "".join(
        f'<section id="{section.id}"><h2>{html.escape(section.title)}</h2>\n{section.body}</section>\n'
        for section in filled
    )
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main><h1>{html.escape(title)}</h1>\n{paragraph(subtitle, note=True)}<nav>{links}</nav>\n"
        f"{body}</main></body></html>\n"
    )
