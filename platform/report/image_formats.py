"""The formats that pictures are written in."""

from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.common.options import option

FORMATS = ("png", "pdf", "svg")
"""Formats of pictures; the first is that of a search's own pictures."""


def pictures_field() -> Any:
    """Returns the field of `--pictures`."""
    about = "the pictures' format: png, pdf or svg (default: png)"
    return option(FORMATS[0], choices=FORMATS, metavar="FORMAT", about=about)


def show_dollars() -> None:
    """Lets pictures show names with `$` as they are: matplotlib reads text between two of them as TeX."""
    import matplotlib

    matplotlib.rcParams["text.parse_math"] = False


def format_of(path: Path, option: str) -> str:
    """Returns the format that the file's name ends in.

    Raises:
        InputError: it is none that is drawn.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InputError(f"{option} needs a name that ends in .{', .'.join(FORMATS)}, got {path}")
    return suffix
