"""Reads paths as a user types them."""

import os
from pathlib import Path

_LONGEST_NAME, _LONGEST_PATH = 255, 4096
"""Longest name and path in bytes on Linux."""


def expanded(text: str | Path) -> Path:
    """Returns the path with `~` and `~user` replaced by home folders.

    Raises:
        ValueError: there is no such user, or no file system allows the path; one sentence.
    """
    shortened = str(text) if len(str(text)) <= 80 else f"{str(text)[:77]}..."
    try:
        path = Path(text).expanduser()
        encoded = os.fsencode(path)
    except RuntimeError as error:
        raise ValueError(f"no home folder is known for {shortened!r}: give the whole path") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{shortened!r} cannot be the name of a file: it is no valid text") from error
    if b"\0" in encoded:
        raise ValueError(f"{shortened!r} cannot be the name of a file: it holds a null character")
    longest = max(map(len, encoded.split(b"/")), default=0)
    if longest > _LONGEST_NAME or len(encoded) > _LONGEST_PATH:
        raise ValueError(
            f"{shortened!r} cannot be the name of a file: it has {len(encoded)} bytes, of at most"
            f" {_LONGEST_NAME} a folder or file and {_LONGEST_PATH} in all"
        )
    return path
