"""Documents that cannot be read: a limited number is skipped and reported; the next one ends the run.

Documents that an option leaves out or cuts are reported too.
"""

import collections
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from trainers.records.plain_files import read_json

PASSED_OVER, LEFT_OUT, CUT = "Passed over", "Left out", "Cut"
"""Treatments of documents: unreadable and skipped, left out by an option, cut by an option."""


class BadDocument(InputError):
    """An unreadable document in a readable file.

    `reason` is the same for all documents of its kind; the sentence names the position.
    """

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.sentence, self.reason = sentence, reason

    def __reduce__(self) -> tuple[type["BadDocument"], tuple[str, str]]:
        return type(self), (self.sentence, self.reason)


class Skipped:
    """The skipped, left-out and cut documents of one shard: the number and the first one of each reason."""

    def __init__(self, is_allowed: Callable[[], bool]) -> None:
        self._is_allowed = is_allowed
        self.counts: collections.Counter[str] = collections.Counter()
        self.first: dict[str, str] = {}
        self._verbs: dict[str, str] = {}

    def tell(self, verb: str, reason: str, sentence: Callable[[], str]) -> None:
        """Counts a document that an option leaves out or cuts. `sentence` is called for the first one of its reason."""
        self.counts[reason] += 1
        self._verbs[reason] = verb
        if reason not in self.first:
            self.first[reason] = sentence()

    def add(self, bad: BadDocument) -> None:
        """Skips a document.

        Raises:
            BadDocument: no further document may be skipped.
        """
        if not self._is_allowed():
            raise bad
        self.counts[bad.reason] += 1
        self.first.setdefault(bad.reason, bad.sentence)

    def write(self, path: Path) -> None:
        """Saves the counts in a file beside the shard, for a resumed run."""
        if self.counts:
            entries = {
                reason: (self.counts[reason], self.first[reason], self._verbs.get(reason, PASSED_OVER))
                for reason in self.counts
            }
            path.write_text(json.dumps(entries))


def note_of(shard: Path) -> Path:
    """Returns the file of a shard that lists its skipped documents."""
    return shard.with_name(f".skipped-{shard.stem}.json")


def summed(notes: Iterable[Path]) -> tuple[dict[str, int], list[str]]:
    """Returns the number of missing documents by reason from the notes, and a sentence for every reason."""
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, tuple[str, str]] = {}
    for note in notes:
        read: Mapping[str, Any] = read_json(note) if note.is_file() else {}
        for reason, (count, sentence, verb) in read.items():
            counts[reason] += count
            first.setdefault(reason, (verb, sentence))
    sentences = [f"{verb} {counts[reason]:,}: {reason}; the first: {place}" for reason, (verb, place) in first.items()]
    return {reason: counts[reason] for reason, (verb, _) in first.items() if verb != CUT}, sentences


def num_passed_over(notes: Iterable[Path]) -> int:
    """Returns the number of unreadable documents in the notes."""
    read = [read_json(note) for note in notes if note.is_file()]
    return sum(count for note in read for count, _, verb in note.values() if verb == PASSED_OVER)
