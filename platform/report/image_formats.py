"""The file formats of pictures."""

from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.common.options import option

FORMATS = ("png", "pdf", "svg")
"""Formats of pictures; the first one is the default."""


def pictures_field() -> Any:
    about = "the pictures' format: png, pdf or svg (default: png)"
    return option(FORMATS[0], choices=FORMATS, metavar="FORMAT", about=about)


def show_dollars() -> None:
    """Makes pictures show `$` in names unchanged; matplotlib would read text between two `$` as TeX."""
    import matplotlib

    matplotlib.rcParams["text.parse_math"] = False


def format_of(path: Path, option: str) -> str:
    """Returns the picture format given by the file's suffix.

    Raises:
        InputError: the suffix is not one of `FORMATS`.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InputError(f"{option} needs a name that ends in .{', .'.join(FORMATS)}, got {path}")
    return suffix
