"""Studies of a bucket: their journals are copied here, where they are read as any others; nothing is written there."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from platform.common.errors import InputError, one_line
from platform.study.journal import JOURNAL


def is_address(text: str) -> bool:
    """Returns whether `text` is the address of a folder elsewhere, such as s3://bucket/studies, and no path."""
    return "://" in text


@functools.cache
def fetched(address: str) -> Path:
    """Returns a folder with the journals of the study or the studies at an address, in their places below it. It is
    there until this process ends.

    Raises:
        InputError: there is none, the address has a password in it, or cannot be read.
    """
    from platform.common.places import input_path  # pyarrow's file systems, for addresses alone

    root = input_path(address)
    folder = Path(tempfile.mkdtemp(prefix="studies-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copied = folder / (root.name or "studies")
    journals = [path for path in root.rglob("*") if path.name == JOURNAL] if root.is_dir() else []
    if not journals:
        raise InputError(f"there is no study at {address}: name a folder that holds a {JOURNAL}, or folders with one")
    for path in journals:
        copy = copied / Path(path.relative_to(root))
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("rb") as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise InputError(f"cannot read {path}: {one_line(error)}") from error
    return copied
