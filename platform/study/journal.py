"""Reading a journal: whole lines only, a damaged one set aside, and the rest used."""

import copy
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError
from trainers.journal import JournalError, Line, NewerSchemaError, from_line, now

JOURNAL = "journal.jsonl"
REJECTED = "journal.rejected.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A line of a journal that cannot be used."""

    offset: int
    """Where it begins, in bytes from the file's start."""
    number: int
    """Which line it is, from 1."""
    text: str
    why: str


class Tail:
    """Reads a journal as it grows. Each `read` returns what came since the last one, never half a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rejected: list[Rejected] = []
        """Every line set aside so far."""
        self._offset = 0
        self._number = 0
        self._before: Sequence[Line] = ()

    def fork(self, lines: Sequence[Line] = ()) -> "Tail":
        """Another one, for a reader of its own, that gives `lines` and then what this one has not read yet."""
        other = copy.copy(self)
        other.rejected, other._before = list(self.rejected), tuple(lines)
        return other

    def read(self, *, last: bool = False) -> list[Line]:
        """The entries that are new; empty where the file does not exist yet.

        With `last`, no writer is alive: an end without a newline is taken as the last line, whole or cut.

        Raises:
            InputError: a line was written by a newer version of this project.
        """
        entries, self._before = list(self._before), ()
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return entries
        end = len(data) if last else data.rfind(b"\n") + 1
        for line in data[:end].splitlines(keepends=True):
            self._number += 1
            entry = self._entry(line)
            self._offset += len(line)
            if entry is not None:
                entries.append(entry)
        return entries

    def _entry(self, line: bytes) -> Line | None:
        if not line.strip():
            return None
        try:
            return from_line(line)
        except NewerSchemaError as error:
            raise InputError(f"line {self._number} of {self.path} was {error}: update this checkout") from error
        except JournalError as error:
            text = line.rstrip(b"\n").decode("utf-8", "replace")
            self.rejected.append(Rejected(offset=self._offset, number=self._number, text=text, why=str(error)))
            return None


def set_aside(folder: Path, rejected: list[Rejected]) -> str:
    """Keep unusable lines in the study's `journal.rejected.jsonl`, each once; one sentence about them, "" for none."""
    if not rejected:
        return ""
    path = folder / REJECTED
    known: set[int] = set()
    if path.exists():
        with path.open(encoding="utf-8") as file:
            known = {json.loads(line)["offset"] for line in file}
    with path.open("a", encoding="utf-8") as file:
        for each in rejected:
            if each.offset not in known:
                file.write(json.dumps({"set_aside_at": now(), **dataclasses.asdict(each)}) + "\n")
    return describe_rejected(folder, rejected, f"kept in {REJECTED}, ")


def describe_rejected(folder: Path, rejected: list[Rejected], kept: str = "") -> str:
    """One sentence on what of the journal could not be used and where it is `kept`; "" where all of it could."""
    if not rejected:
        return ""
    first = rejected[0]
    lines = f"Line {first.number}" if len(rejected) == 1 else f"{len(rejected)} lines (the first is {first.number})"
    return f"{lines} of {folder / JOURNAL} could not be used ({first.why}): {kept}the rest is used."
