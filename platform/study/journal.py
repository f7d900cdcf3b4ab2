"""Reads a journal by complete lines, and sets damaged lines aside."""

import copy
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from trainers.records.journal import Line, Resume, StudyHeader
from trainers.records.journal_lines import JournalError, NewerSchemaError, from_line, now
from trainers.records.plain_files import MOST_BYTES, lines_of, open_plain, read_plain
from trainers.spec.codec import json_object
from trainers.spec.errors import MissingFileError

JOURNAL = "journal.jsonl"
REJECTED = "journal.rejected.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RejectedLine:
    """A journal line that cannot be used."""

    offset: int
    """Byte offset of the line in the file."""
    number: int
    """Line number, from 1."""
    text: str
    why: str


class Tail:
    """Reads a growing journal. Each `read` returns the complete lines added since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rejected: list[RejectedLine] = []
        """Damaged lines so far."""
        self.newer: list[RejectedLine] = []
        """Lines so far that a newer version of this project wrote."""
        self._commit = ""
        """Commit of the checkout that wrote the last lines, if they state it."""
        self._offset = 0
        self._number = 0
        self._before: Sequence[Line] = ()

    def fork(self, lines: Sequence[Line] = ()) -> "Tail":
        """Returns a second reader, which returns `lines` first and then the lines that this reader has not read yet."""
        other = copy.copy(self)
        other.rejected, other.newer, other._before = list(self.rejected), list(self.newer), tuple(lines)
        return other

    def read(self, *, last: bool = False) -> list[Line]:
        """Returns the new entries; empty if the file does not exist yet.

        With `last` (no writer is alive), a final line without a newline is read too; it may be complete or cut.

        Raises:
            InputError: the file is a link or cannot be read.
        """
        entries, self._before = list(self._before), ()
        try:
            with os.fdopen(open_plain(self.path, most_bytes=MOST_BYTES), "rb") as file:
                file.seek(self._offset)
                for line in lines_of(file, self.path):  # a journal may have 100 MiB
                    if not (last or line.endswith(b"\n")):
                        break
                    self._number += 1
                    entry = self._entry(line)
                    self._offset += len(line)
                    if entry is not None:
                        entries.append(entry)
        except MissingFileError:
            return entries
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}") from error
        return entries

    def _entry(self, line: bytes) -> Line | None:
        if not line.strip():
            return None
        try:
            entry = from_line(line)
        except NewerSchemaError as error:
            self._commit = error.commit or self._commit
            remedy = f": the checkout of commit {self._commit} reads it" if self._commit else ": update this checkout"
            self.newer.append(self._rejected(line, f"{error}{remedy}"))
            return None
        except JournalError as error:
            self.rejected.append(self._rejected(line, str(error)))
            return None
        if isinstance(entry, (StudyHeader, Resume)):
            self._commit = entry.commit
        return entry

    def _rejected(self, line: bytes, reason: str) -> RejectedLine:
        text = line.rstrip(b"\n").decode("utf-8", "replace")
        return RejectedLine(offset=self._offset, number=self._number, text=text, why=reason)


def set_aside(folder: Path, rejected: Sequence[RejectedLine]) -> str:
    """Writes damaged lines once each to the study's `journal.rejected.jsonl`; returns a sentence about them, "" if
    there are none.

    Raises:
        InputError: the file cannot be written.
    """
    if not rejected:
        return ""
    path = folder / REJECTED
    before = read_plain(path).decode("utf-8", "replace").splitlines() if os.path.lexists(path) else []
    known_offsets = {_offset(line) for line in before}
    new = [rejected_line for rejected_line in rejected if rejected_line.offset not in known_offsets]
    if new:
        lines = [json.dumps({"set_aside_at": now(), **dataclasses.asdict(rejected_line)}) for rejected_line in new]
        with replacing(path, durably=True, private=True) as part:
            part.write_text("".join(f"{line}\n" for line in (*before, *lines)), encoding="utf-8")
    return describe_rejected(folder, rejected, f"stored in {REJECTED}, ")


def _offset(line: str) -> int | None:
    """Returns the offset stored in a line of `journal.rejected.jsonl`; None if that line is damaged itself."""
    try:
        return json_object(line).get("offset")
    except ValueError:
        return None


def describe_rejected(folder: Path, rejected: Sequence[RejectedLine], place: str = "") -> str:
    """Returns a sentence on the unusable lines and the `place` where they are stored; "" if there are none."""
    if not rejected:
        return ""
    return f"{_lines(rejected)} of {folder / JOURNAL} could not be used ({rejected[0].why}): {place}the rest is used."


def describe_newer(folder: Path, newer: Sequence[RejectedLine]) -> str:
    """Returns a clause on lines of a newer version and the version that reads them; "" if there are none."""
    verb = "was" if len(newer) == 1 else "were"
    return f"{_lines(newer)} of {folder / JOURNAL} {verb} {newer[0].why}" if newer else ""


def _lines(rejected: Sequence[RejectedLine]) -> str:
    first = rejected[0].number
    return f"Line {first}" if len(rejected) == 1 else f"{len(rejected)} lines (the first is {first})"
