"""Writes the pages of docs/reference: options, axes, degrees, JSON keys, accuracy, measurements.

    make docs        or python -m scripts.reference

Each page is made from the software's own sources: parsers, declarations, engines' rules, committed files.
`tests/scripts/test_reference.py` fails if a page is out of date.
"""

import argparse
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts import accuracy
from scripts.pages import axes, degrees, json_keys, measurements, options

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "accuracy.md": accuracy.page,
    "axes.md": axes.page,
    "degrees.md": degrees.page,
    "json.md": json_keys.page,
    **{name: functools.partial(json_keys.page_of, name) for name in json_keys.PAGES},
    "measurements.md": measurements.page,
    "options.md": options.page,
}
"""Function that returns the text, by name of the page."""


def written(name: str) -> str:
    """Returns the current text of a page, with a first line that states its origin."""
    return f"<!-- made by python -m scripts.reference -->\n\n{PAGES[name]()}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name in PAGES:
        (FOLDER / name).write_text(written(name), encoding="utf-8")


if __name__ == "__main__":
    main()
