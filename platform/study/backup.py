"""Copies a study's journal to a folder or an address such as s3://BUCKET/PREFIX, in case the machine is lost.

The journal in the study's folder stays authoritative; its complete lines are copied as it grows. On another machine the
study resumes from the copy. Only one search may write a copy: one that finds lines of another search stops copying.
"""

import contextlib
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from platform.common.errors import InputError, one_line
from platform.common.output import print_line
from platform.common.text import plural
from platform.study.atomic_write import replacing
from platform.study.folder import make_folder, user_path
from platform.study.journal import JOURNAL
from platform.study.lock import acquire
from trainers.records.plain_files import MOST_BYTES, read_plain
from trainers.records.trust import admit
from trainers.spec.errors import MissingFileError

EVERY_S = 10.0
"""Seconds between two copies: the lines of at most this time are lost with a machine."""
_PROBE = ".layout-search"


class _Files(Protocol):
    """Named files of the copy. Every method raises `OSError` on failure."""

    def size(self, name: str) -> int:
        """Returns the file's size in bytes; 0 if it does not exist."""
        ...

    def read(self, name: str) -> bytes:
        """Returns the file's content; empty if it does not exist."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replaces the file by `data` atomically."""
        ...

    def remove(self, name: str) -> None: ...


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def read(self, name: str) -> bytes:
        path = self.path / name
        return read_plain(path, links=True, most_bytes=MOST_BYTES) if path.exists() else b""

    def write(self, name: str, data: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durably=True, private=True) as part:
            part.write_bytes(data)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()


class _Objects:
    """Objects at an address that pyarrow supports (s3://, gs://, abfs://). An object appears once it is complete."""

    def __init__(self, address: str) -> None:
        from pyarrow import fs

        self._files, root = fs.FileSystem.from_uri(address)
        self._root = root.rstrip("/")

    def size(self, name: str) -> int:
        return self._files.get_file_info(f"{self._root}/{name}").size or 0

    def read(self, name: str) -> bytes:
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return b""

    def write(self, name: str, data: bytes) -> None:
        with self._files.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(data)

    def remove(self, name: str) -> None:
        self._files.delete_file(f"{self._root}/{name}")


class Backup:
    """The copy of one study's journal, at PLACE/NAME/journal.jsonl."""

    def __init__(self, place: str, name: str) -> None:
        """Opens the place, checks that it is writable, and reads the existing copy.

        Raises:
            InputError: `place` is neither a folder nor an address that pyarrow supports, or cannot be read or written.
        """
        self.place = without_secrets(place)
        self.name = name
        self._path = f"{name}/{JOURNAL}"
        try:
            self._files: _Files = _Objects(place) if "://" in place else _Folder(user_path(place).absolute())
            self._files.write(_PROBE, b"\n")
            self._files.remove(_PROBE)
            self._copied = self._files.read(self._path)
        except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
            raise InputError(
                f"--copy-to {self.place} cannot be used ({one_line(error)[:300]}): give a folder, or an address such as"
                " s3://BUCKET/PREFIX, and the credentials that its service reads"
            ) from error
        self._is_others = self._has_failed = False
        self._taking = threading.Lock()

    @property
    def is_begun(self) -> bool:
        """Whether the copy has any line."""
        return bool(self._copied)

    def fetch(self, studies: Path, *, trusted: bool = False) -> str:
        """Updates the journal in `studies` if it is missing or behind the copy; returns a sentence if lines were added,
        else "".

        Raises:
            InputError: the journal and the copy each have lines that the other lacks, the copy belongs to another user
                and is not `trusted`, or the study's folder is locked or not writable.
        """
        if isinstance(self._files, _Folder):
            admit(self._files.path / self.name, (JOURNAL,), trusted=trusted)
        folder = studies / self.name
        local = _finished(folder / JOURNAL)
        if local.startswith(self._copied):
            return ""
        if not self._copied.startswith(local):
            raise InputError(
                f"the study {self.name!r} and its copy in {self.place} each have lines that the other lacks, as after"
                " two searches that resumed it: move one of them away"
            )
        make_folder(folder)
        lock = acquire(folder)
        try:
            with replacing(folder / JOURNAL, durably=True, private=True) as part:
                part.write_bytes(self._copied)
        finally:
            os.close(lock)
        new = len(self._copied.splitlines()) - len(local.splitlines())
        return f"{plural(new, 'line')} of {self.name} came from {self.place}."

    @contextlib.contextmanager
    def following(self, journal: Path, *, every_s: float = EVERY_S) -> Generator[None]:
        """Copies the growing `journal` from another thread every `every_s` seconds, and once more on leaving.

        A failed copy is reported and tried again; no line is lost, because the journal has them all.
        """
        is_over = threading.Event()

        def follow() -> None:
            while not is_over.wait(every_s):
                self.take(journal)

        thread = threading.Thread(target=follow, name="copy", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self.take(journal, last=True)

    def take(self, journal: Path, *, last: bool = False) -> None:
        """Copies the new complete lines of `journal`; does nothing after another search wrote the copy."""
        with self._taking:
            self._take(journal, last=last)

    def _take(self, journal: Path, *, last: bool) -> None:
        try:
            lines = _finished(journal)
            if self._is_others or len(lines) == len(self._copied):
                return
            if self._files.size(self._path) != len(self._copied):
                self._is_others = True
                print_line(
                    f"Another search wrote the copy of {self.name} in {self.place}: this one copies no more; its own"
                    " folder has all lines."
                )
                return
            self._files.write(self._path, lines)
            self._copied, self._has_failed = lines, False
        except (OSError, InputError) as error:
            if last or not self._has_failed:
                remedy = "its own folder has all lines" if last else "it is tried again"
                print_line(
                    f"The journal of {self.name} could not be copied to {self.place} ({one_line(error)[:200]}):"
                    f" {remedy}."
                )
            self._has_failed = True


def without_secrets(place: str) -> str:
    """Returns an address without user, password and query, which may hold secrets."""
    if "://" not in place:
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _finished(journal: Path) -> bytes:
    """Returns the journal's complete lines; empty if there is no journal."""
    try:
        data = read_plain(journal, most_bytes=MOST_BYTES)
    except MissingFileError:
        return b""
    return data[: data.rfind(b"\n") + 1]
