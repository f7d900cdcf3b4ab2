"""A study's folder: created once, written by one driver at a time, found by name."""

import difflib
import errno
import os
import re
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from platform.common.errors import ClusterError, InputError
from platform.study.atomic_write import FULL
from platform.study.folder import make_folder, studies_option
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
"""Names that the MLflow mirror uses in the folder of studies."""


class Study:
    """A study locked for writing by this process. Close it, or use it with `with`."""

    def __init__(self, path: Path, lock: int, new_folders: Sequence[Path] = ()) -> None:
        self.path = path
        self._lock: int | None = lock
        self._new_folders = new_folders
        """Folders created for the study, the deepest first."""
        # The journal as read at resumption: ten thousand measurements take seconds to read, so they are read once.
        self._tail = Tail(path / JOURNAL)
        self._lines: list[Line] = []
        self._history = History()
        self._recording, self._has_ended = threading.Lock(), False

    @classmethod
    def create(cls, studies: Path, name: str) -> Self:
        """Creates the study's folder and returns the study. The first `record` creates the journal.

        Raises:
            InputError: the name is invalid or taken, or the folder cannot be created.
        """
        cls.check_free(studies, name)
        path = (studies / name).absolute()
        new_folders = [parent for parent in (path, *path.parents) if not parent.exists()]
        make_folder(path)
        lock = acquire(path)
        try:
            _refuse_existing(path)
        except InputError:
            os.close(lock)
            raise
        return cls(path, lock, new_folders)

    @staticmethod
    def check_free(studies: Path, name: str) -> None:
        """Checks that a new study may have this name, before anything is created.

        Raises:
            InputError: the name is invalid or taken.
        """
        check_name(name)
        _refuse_existing(studies / name)

    @classmethod
    def resume(cls, studies: Path, name: str, *, trusted: bool = False) -> tuple[Self, History, str]:
        """Opens an existing study; returns it, its history, and a sentence on damaged lines that were set aside ("" if
        none).

        Raises:
            InputError: the study does not exist, belongs to another user and is not `trusted`, has a link in its
                folder, is locked by another driver, has no readable first line, or has lines of a newer version.
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
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    def from_start(self) -> Tail:
        """Returns a separate reader of the journal from its first line."""
        return self._tail.fork(self._lines)

    def follow(self) -> tuple[Tail, History]:
        """Returns a separate reader of the lines that follow, and a copy of the history so far."""
        tail, history = self._tail.fork(), self._history.copy()
        history.extend(tail.read())
        return tail, history

    def record(self, entry: Line) -> None:
        """Appends a line to the journal; it is on disk when this returns.

        Lines after a session's `End` are dropped until the next session begins, because one thread may report a trial's
        end while another ends the session.

        Raises:
            ClusterError: the journal could not be written, because the disk is full or gone.
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
                f" {remedy}, then continue with --resume {shlex.quote(self.name)}{studies_option(self.path.parent)}"
            ) from error

    def close(self) -> None:
        """Unlocks the study and removes a new one without a journal. Closing twice does nothing."""
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
                return  # the folder has files of someone else

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_name(name: str) -> None:
    """Checks that `name` can name a study.

    Raises:
        InputError: a character, the length, or the name itself is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot name a study: use up to 64 letters, digits, dots, dashes and underscores,"
            " a letter or digit first"
        )
    if name in _RESERVED:
        raise InputError(f"{name!r} cannot name a study: MLflow's records are kept under that name")


def is_study(path: Path) -> bool:
    """Returns whether the folder `path` has a non-empty journal."""
    journal = path / JOURNAL
    return journal.exists() and journal.stat().st_size > 0


def names(studies: Path) -> list[str]:
    return sorted(path.parent.name for path in studies.glob(f"*/{JOURNAL}"))


def below(folder: Path) -> list[Path]:
    """Returns the folders of studies in `folder` and in its direct subfolders, which a team has one of per person."""
    return sorted(path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{JOURNAL}"))


def fresh_name(studies: Path, space: str) -> str:
    """Returns a free study name: the space's with a number."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", space).strip("-._")[:56] or "study"
    number = 1
    while any((studies / f"{stem}-{number}" / file).exists() for file in (JOURNAL, SCALING)):
        number += 1
    return f"{stem}-{number}"


def find(studies: Path, name: str) -> Path:
    """Returns the absolute path of a study's folder.

    Raises:
        InputError: no study has that name; the text suggests similar ones.
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
    """Returns the history of the study in folder `path`, and sentences on lines that could not be used. Writes nothing.

    With `last` (no writer is alive), an incomplete last line is read too.

    Raises:
        InputError: the journal is a link, or has no readable first line.
    """
    tail = Tail(path / JOURNAL)
    _, history = _read(tail, last=last)
    newer = describe_newer(path, tail.newer)
    remarks = [describe_rejected(path, tail.rejected), newer and f"{newer}; the rest is used."]
    return history, [remark for remark in remarks if remark]


def _read(tail: Tail, *, last: bool) -> tuple[list[Line], History]:
    """Returns the remaining lines of the journal, and their history.

    Raises:
        InputError: the journal has no readable first line.
    """
    with no_collector():  # the garbage collector is off: a journal of 50 MiB becomes many objects, none in cycles
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
