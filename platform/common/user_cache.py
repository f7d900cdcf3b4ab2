"""The user's cache folder, kept between commands."""

import os
from pathlib import Path


def folder_of(kind: str) -> Path:
    """Returns the cache folder for one kind of files; it may not exist.

    Raises:
        RuntimeError: the user has no home folder.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return cache / "layout-search" / kind
