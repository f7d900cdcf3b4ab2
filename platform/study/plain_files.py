"""Opens the files of a study without following links, which could lead to any file of this user."""

import errno
import os
from pathlib import Path

from platform.common.errors import InputError


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Returns a file descriptor of the file `path` itself.

    Raises:
        FileNotFoundError: there is none.
        InputError: it is a link, or cannot be opened.
    """
    try:
        # Without O_NONBLOCK a pipe of that name would be waited for.
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(_refusal(path)) from error
        raise InputError(f"the file {path} cannot be opened: {error.strerror or error}") from error


def read_plain(path: Path) -> bytes:
    """Returns the content of the file `path`, empty where there is none.

    Raises:
        InputError: it is a link, or cannot be read.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InputError(f"the file {path} cannot be read: {error.strerror or error}") from error


def refuse_links(folder: Path) -> None:
    """Refuses a study's folder that contains a link: results would be written over its target.

    Raises:
        InputError: there is one, or the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            link = next((Path(entry) for entry in entries if entry.is_symlink()), None)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be read: {error.strerror or error}") from error
    if link is not None:
        raise InputError(_refusal(link))


def _refusal(path: Path) -> str:
    return f"{path} is a link, and links are not followed in a study: put the file itself in its place"
