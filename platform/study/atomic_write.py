"""Writes files atomically: a reader sees the old content or all of the new content."""

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path

from platform.common.errors import InputError
from trainers.records.journal_lines import flush
from trainers.records.plain_files import private_mode

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk."""


@contextlib.contextmanager
def replacing(path: Path, *, durably: bool = False, private: bool = False) -> Generator[Path, None, None]:
    """Yields a temporary path that replaces `path` on leaving. Two processes may write one `path` at once.

    With `durably`, the content is on disk afterwards; with `private`, the file gets a journal's permissions. A link,
    device or pipe such as /dev/stdout cannot be replaced, so its own path is yielded and written directly.

    Raises:
        InputError: the file cannot be written.
    """
    itself = path.is_symlink() or (path.exists() and not path.is_file())
    part = path if itself else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if private and not itself:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, private_mode(path.parent)))
        yield part
        if durably:
            flush(part)
        if not itself:
            part.replace(path)
        if durably:
            flush(path.parent)
    except OSError as error:
        remedy = ": make room, then resume" if error.errno in FULL else ""
        raise InputError(f"the file {path} cannot be written: {error.strerror or error}{remedy}") from error
    finally:
        if not itself:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
