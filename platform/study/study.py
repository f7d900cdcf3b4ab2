"""A study's folder: created once, held by one driver at a time, found by name."""

import difflib
import errno
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from platform.common.errors import ClusterError, InputError
from platform.study.atomic_write import FULL
from platform.study.folder import studies_option
from platform.study.group import SCALING, is_group
from platform.study.history import History
from platform.study.journal import JOURNAL, Tail, describe_newer, describe_rejected, set_aside
from platform.study.lock import LOCK, acquire
from trainers.records.journal import End, Line, Resume, StudyHeader
from trainers.records.journal_lines import record
from trainers.records.trust import admit
from trainers.startup.import_stubs import no_collector

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVED = ("mlflow.db", "mlflow-artifacts")
"""Names that the MLflow mirror uses beside the studies."""


class Study:
    """A study that this process writes, and no other while it is open; close it, or use it with `with`."""

    def __init__(self, path: Path, lock: int, new_folders: Sequence[Path] = ()) -> None:
        self.path = path
        self._lock: int | None = lock
        self._new_folders = new_folders
        """Folders that were created for it, the deepest first."""
        # What it was resumed with. Ten thousand measurements take seconds to be read: nobody does so a second time.
        self._tail = Tail(path / JOURNAL)
        self._lines: list[Line] = []
        self._history = History()
        self._recording, self._has_ended = threading.Lock(), False

    @classmethod
    def create(cls, studies: Path, name: str) -> Self:
        """Creates a study and returns it. Its folder is made now, its journal with the first `record`.

        Raises:
            InputError: the name is not one, or taken, or the folder cannot be made.
        """
        cls.check_free(studies, name)
        path = (studies / name).absolute()
        new_folders = [parent for parent in (path, *path.parents) if not parent.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the folder {path} cannot be made: {error.strerror}") from error
        lock = acquire(path)
        try:
            _refuse_existing(path)
        except InputError:
            os.close(lock)
            raise
        return cls(path, lock, new_folders)

    @staticmethod
    def check_free(studies: Path, name: str) -> None:
        """Refuses a name that cannot be a new study's, before anything is made.

        Raises:
            InputError: the name is not one, or taken.
        """
        check_name(name)
        _refuse_existing(studies / name)

    @classmethod
    def resume(cls, studies: Path, name: str, *, trusted: bool = False) -> tuple[Self, History, str]:
        """Opens an existing study; returns it with its history and a sentence on lines that were set aside ("" for
        none).

        Raises:
            InputError: there is no such study, it is another user's and not `trusted`, something in its folder is a
                link, another driver holds it, its journal does not say what it is about, or a newer version wrote to
                it.
        """
        path = find(studies, name)
        admit(path, (JOURNAL,), trusted=trusted)
        study = cls(path, acquire(path))
        try:
            study._lines, study._history = _read(study._tail, last=True)
            if newer := study._tail.newer:
                raise InputError(f"{describe_newer(path, newer)}; platform.report shows the rest")
            sentence = set_aside(path, study._tail.rejected)
        except BaseException:
            study.close()
            raise
        return study, study.follow()[1], sentence

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """The journal's absolute path."""
        return self.path / JOURNAL

    def from_start(self) -> Tail:
        """Returns a separate reader of the journal from its first line."""
        return self._tail.fork(self._lines)

    def follow(self) -> tuple[Tail, History]:
        """Returns a separate reader of what follows in the journal, and a copy of the history so far."""
        tail, history = self._tail.fork(), self._history.copy()
        history.extend(tail.read())
        return tail, history

    def record(self, entry: Line) -> None:
        """Appends to the journal; the line is on disk when this returns.

        After a session's `End`, its last line, nothing is written until the next session: one thread may see a trial
        end while another one leaves.

        Raises:
            ClusterError: it could not be written: the disk is full or gone.
        """
        with self._recording:
            if self._has_ended and not isinstance(entry, (Resume, End)):
                return
            self._write(entry)
            self._has_ended = isinstance(entry, End)

    def _write(self, entry: Line) -> None:
        try:
            record(self.journal, entry, must_exist=not isinstance(entry, StudyHeader))
        except OSError as error:
            gone = error.errno == errno.ENOENT
            remedy = "make room" if error.errno in FULL else "bring it back" if gone else "make it writable"
            raise ClusterError(
                f"the journal {self.journal} cannot be written ({error.strerror or error}); what it holds is kept:"
                f" {remedy}, then continue with --resume {self.name}{studies_option(self.path.parent)}"
            ) from error

    def close(self) -> None:
        """Unlocks the study, and removes a new one in which nothing was recorded. Closing twice does nothing."""
        if self._lock is None:
            return
        if not self.journal.exists():
            self._remove()
        os.close(self._lock)
        self._lock = None

    def _remove(self) -> None:
        (self.path / LOCK).unlink(missing_ok=True)
        for folder in self._new_folders:
            try:
                folder.rmdir()
            except OSError:
                return  # somebody else's files are in it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_name(name: str) -> None:
    """Refuses what cannot name a study.

    Raises:
        InputError: a character, length or name that is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot name a study: use up to 64 letters, digits, dots, dashes and underscores,"
            " a letter or digit first"
        )
    if name in _RESERVED:
        raise InputError(f"{name!r} cannot name a study: MLflow's records are kept under that name")


def is_study(path: Path) -> bool:
    """Returns whether a study was begun in the folder `path`."""
    journal = path / JOURNAL
    return journal.exists() and journal.stat().st_size > 0


def names(studies: Path) -> list[str]:
    """Returns the studies of a folder, sorted."""
    return sorted(path.parent.name for path in studies.glob(f"*/{JOURNAL}"))


def below(folder: Path) -> list[Path]:
    """Returns the folders of the studies in a folder and in those in it, which a team has for each person."""
    return sorted(path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{JOURNAL}"))


def fresh_name(studies: Path, space: str) -> str:
    """Returns a free study name, the space's with a number."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", space).strip("-._")[:56] or "study"
    number = 1
    while any((studies / f"{stem}-{number}" / file).exists() for file in (JOURNAL, SCALING)):
        number += 1
    return f"{stem}-{number}"


def find(studies: Path, name: str) -> Path:
    """Returns the absolute path of a study's folder.

    Raises:
        InputError: there is none of that name.
    """
    study_names = names(studies)
    if name in study_names:
        return (studies / name).absolute()
    close_names = difflib.get_close_matches(name, study_names, n=3, cutoff=0.5)
    if close_names:
        hint = f"did you mean {' or '.join(close_names)}?"
    elif study_names:
        hint = f"there are {', '.join(study_names[:8])}{' and more' if len(study_names) > 8 else ''}"
    else:
        hint = "there are no studies yet"
    raise InputError(f"no study {name!r} in {studies.absolute()}: {hint}")


def read(path: Path, *, last: bool = False) -> tuple[History, list[str]]:
    """Returns the history of the study in folder `path`, and sentences on the lines that could not be used.

    With `last`, no writer is alive and an unfinished end of the file counts as a line. Nothing is written.

    Raises:
        InputError: the journal does not say what the study is about, or is a link.
    """
    tail = Tail(path / JOURNAL)
    _, history = _read(tail, last=last)
    newer = describe_newer(path, tail.newer)
    remarks = [describe_rejected(path, tail.rejected), newer and f"{newer}; the rest is used."]
    return history, [remark for remark in remarks if remark]


def _read(tail: Tail, *, last: bool) -> tuple[list[Line], History]:
    """Returns the lines of the journal from where `tail` is, and their history."""
    with no_collector():  # all that a journal of 50 MiB becomes has no cycles
        lines = tail.read(last=last)
        history = History(lines)
    if history.header is None and tail.newer:
        raise InputError(describe_newer(tail.path.parent, tail.newer))
    if history.header is None:
        reason = f" ({tail.rejected[0].why})" if tail.rejected else ""
        raise InputError(f"{tail.path} does not begin with a study's first line{reason}: give the search a new name")
    return lines, history


def _refuse_existing(path: Path) -> None:
    if is_study(path) or is_group(path):
        raise InputError(
            f"a study {path.name!r} exists already in {path.parent.absolute()}:"
            f" continue it with --resume {path.name}{studies_option(path.parent.absolute())}, or choose another name"
        )
