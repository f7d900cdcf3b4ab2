"""Reads studies from a bucket: copies their journals to a local folder and never writes to the bucket."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from platform.common import copies
from platform.common.errors import InputError, one_line
from platform.study.journal import JOURNAL

_DEEPEST = 3
"""Parts of a journal's path below an address, as below a folder: studies of a team lie in a folder of each person."""


def is_address(text: str) -> bool:
    return "://" in text


@functools.cache
def fetched(address: str) -> Path:
    """Returns a local folder with copies of the journals at or below `address`, of studies as deep as a team's. It is
    deleted when this process ends.

    Raises:
        InputError: there is no journal, or the address holds a password or cannot be read.
    """
    from platform.common.places import input_path  # imported here: only addresses need pyarrow's file systems

    root = input_path(address)
    folder = Path(tempfile.mkdtemp(prefix="studies-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copied = folder / (root.name or "studies")
    copies.remember(copied, address)
    found = [path for path in root.rglob("*") if path.name == JOURNAL] if root.is_dir() else []
    journals = [path for path in found if len(Path(path.relative_to(root)).parts) <= _DEEPEST]
    if not journals:
        deeper = f", such as {found[0].parent}" if found else ""
        raise InputError(
            f"there is no study at {address}: name a folder that holds a {JOURNAL}, or folders with one{deeper}"
        )
    for path in journals:
        copy = copied / Path(path.relative_to(root))
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("rb") as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise InputError(f"cannot read {path}: {one_line(error)}") from error
    return copied
