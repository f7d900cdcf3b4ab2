"""Opens files of a training's folder that anybody may have written: never through a link, and never waiting."""

import os
import re
import stat
from pathlib import Path


def open_regular(path: Path) -> int:
    """Returns a descriptor of the file `path` itself, to read.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is a link, a folder, a pipe or a device, or cannot be opened; the text names it.
    """
    try:
        refuse_others(path)
        # Without O_NONBLOCK a pipe that takes the file's place now would be waited for.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be opened ({error.strerror or error})") from error


def read_regular(path: Path) -> bytes:
    """Returns the content of the file `path`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no regular file, or cannot be read; the text names it.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error


def last_attempt(path: Path) -> int:
    """Returns the number in the file of a training's newest attempt; 0 where there is none.

    Raises:
        ValueError: it holds something else, or cannot be read; the text names it.
    """
    try:
        text = read_regular(path)
    except FileNotFoundError:
        return 0
    if not re.fullmatch(rb"\s*\d{1,18}\s*", text):
        raise ValueError(f"{path} holds no number of an attempt: remove it if nothing trains there")
    return int(text)


def refuse_others(*paths: Path) -> None:
    """Refuses whatever stands at one of the paths and is no regular file; nothing need be there.

    Raises:
        ValueError: the first such one.
    """
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path} is {_kind(mode)} where a regular file is expected")


def _kind(mode: int) -> str:
    names = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
    return next((name for is_one, name in names if is_one(mode)), "a socket or a device")
