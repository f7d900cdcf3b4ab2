"""Where drivers that start a Ray say so; a module that every command can import at no cost."""

import os
from collections.abc import Iterator
from pathlib import Path

PREFIX, SUFFIX = "layout-search-", ".json"
"""Begin and end of the name of a claim, a file in Ray's folder of one driver that starts a Ray there."""


def ray_folder() -> Path:
    """Returns the folder in which Ray makes the folders of its sessions."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp")), "ray")


def claims() -> Iterator[Path]:
    """Yields the claims of all drivers, also of running ones."""
    return ray_folder().glob(f"{PREFIX}*{SUFFIX}")
