"""Opens files that anybody may have placed: never waits, opens no device, follows no link unless the user named it."""

import codecs
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainers.spec.codec import json_object, shown
from trainers.spec.errors import InputError, MissingFileError

MOST_BYTES = 4 * 2**30
"""Largest size of a journal, which is read line by line; a sparse file of any size is cheap to send."""
MOST_LINE_BYTES = 64 * 2**20
"""Largest size of a journal's line."""
MOST_WHOLE_BYTES = 256 * 2**20
"""Largest size of a file that is read as a whole; its content may take some times as much memory."""
MOST_SOURCE_BYTES = 16 * 2**20
"""Largest size of a Python file."""


def open_plain(
    path: Path, flags: int = os.O_RDONLY, *, links: bool = False, mode: int = 0o644, most_bytes: int | None = None
) -> int:
    """Returns a descriptor of the regular file `path`. With `links` follows links, as for a path that the user typed. A
    file that `flags` create gets the permissions `mode`; a file larger than `most_bytes` is refused.

    Raises:
        MissingFileError: there is no such file.
        InputError: it is a link, a folder, a pipe, a socket or a device, is too large, or cannot be opened; the text
            names it.
    """
    try:
        _refuse_other(path, path.stat() if links else path.lstat())
    except FileNotFoundError as error:
        if not flags & os.O_CREAT:
            raise MissingFileError(f"{path} cannot be read: there is no such file") from error
    except OSError as error:
        raise _unopened(path, error) from error
    except ValueError as error:
        raise _refused_path(path, error) from error
    try:
        # The file may have been replaced meanwhile. O_NONBLOCK avoids waiting for a pipe.
        follow = 0 if links else os.O_NOFOLLOW
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | follow, mode)
    except OSError as error:
        raise _unopened(path, error) from error
    try:
        status = os.fstat(file)
        _refuse_other(path, status)
        if most_bytes is not None and status.st_size > most_bytes:
            raise InputError(f"{path} has {status.st_size:,} bytes: at most {most_bytes:,} are read of such a file")
    except InputError:
        os.close(file)
        raise
    return file


def private_mode(folder: Path) -> int:
    """Returns the permissions of a new journal or database in `folder`, which reveals this user's paths and machines:
    for this user only, and for the folder's group if that may write in it.

    Raises:
        OSError: there is no such folder.
    """
    return 0o660 if folder.stat().st_mode & stat.S_IWGRP else 0o600


def lines_of(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yields the rest of the file line by line, each with its end.

    Raises:
        InputError: a line has more than `MOST_LINE_BYTES`.
        OSError: the file cannot be read.
    """
    while line := file.readline(MOST_LINE_BYTES + 1):
        if len(line) > MOST_LINE_BYTES:
            raise InputError(
                f"{path} has a line of more than {MOST_LINE_BYTES:,} bytes: no line of such a file is as long"
            )
        yield line


def read_plain(path: Path, *, links: bool = False, most_bytes: int = MOST_WHOLE_BYTES) -> bytes:
    """Returns the content of the file `path`, of at most `most_bytes`.

    Raises:
        MissingFileError: there is no such file.
        InputError: it is no regular file, is too large, or cannot be read; the text names it.
    """
    file = open_plain(path, links=links, most_bytes=most_bytes)
    try:
        with os.fdopen(file, "rb") as opened:
            return opened.read(most_bytes)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path, *, links: bool = False) -> dict[str, Any]:
    """Returns the JSON object in the file `path`, with control characters in its texts escaped. Non-finite numbers are
    read in Python's form.

    Raises:
        MissingFileError: there is no such file.
        InputError: it is no regular file, cannot be read, or is no JSON object; the text names it.
    """
    data = read_plain(path, links=links)
    try:
        # Editors of other systems begin files with it.
        return shown(data, json_object(data.removeprefix(codecs.BOM_UTF8)))
    except ValueError as error:
        raise InputError(f"{path} is no JSON file of this kind: {error}") from error


def last_attempt(path: Path) -> int:
    """Returns the number in the file of a training's newest attempt; 0 if there is no file.

    Raises:
        InputError: it contains something else, or cannot be read; the text names it.
    """
    try:
        text = read_plain(path, most_bytes=4096)
    except MissingFileError:
        return 0
    if not re.fullmatch(rb"\s*\d{1,18}\s*", text):
        raise InputError(f"{path} holds no number of an attempt: remove it if nothing trains there")
    return int(text)


def refuse_others(*paths: Path) -> None:
    """Refuses anything but a regular file at the paths; a path may not exist.

    Raises:
        InputError: a path is no regular file; the first is named.
    """
    for path in paths:
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _unopened(path, error) from error
        _refuse_other(path, status)


def refuse_links(folder: Path) -> None:
    """Refuses a folder that contains a link, because results would overwrite its target.

    Raises:
        InputError: there is a link, or the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            link = next((entry for entry in entries if entry.is_symlink()), None)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be read: {error.strerror or error}") from error
    if link is not None:
        _refuse_other(Path(link), link.stat(follow_symlinks=False))


def _refuse_other(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    names = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
    kind = next((name for is_one, name in names if is_one(status.st_mode)), "a socket or a device")
    remedy = ": links are not followed here, put the file itself in its place" if kind == "a link" else ""
    raise InputError(f"{path} is {kind} where a regular file is expected{remedy}")


def _unopened(path: Path, error: OSError) -> InputError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return MissingFileError(f"{path} cannot be read: there is no such file")
    return InputError(f"{path} cannot be opened: {error.strerror or error}")


def _refused_path(path: Path, error: ValueError) -> InputError:
    if isinstance(error, InputError):
        return error
    return InputError(f"the path {str(path)[:80]!r} is not valid on this file system: {error}")
