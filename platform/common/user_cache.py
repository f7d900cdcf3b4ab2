"""The user's own folder for what is kept between commands."""

import os
from pathlib import Path


def folder_of(kind: str) -> Path:
    """Returns the folder for that kind of files, which need not be there; raises `RuntimeError` where there is no
    home.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return cache / "layout-search" / kind
