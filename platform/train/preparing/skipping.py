"""Documents that cannot be read: the first ends the run, or up to a number of them are passed over and told. Those that
are left out or cut by an option are told beside them.
"""

import collections
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from trainers.records.plain_files import read_json

PASSED_OVER, LEFT_OUT, CUT = "Passed over", "Left out", "Cut"
"""Fates of documents: they cannot be read, or an option leaves them out or cuts them."""


class BadDocument(InputError):
    """A document that cannot be read, in a file that can.

    `reason` is the same for all of its kind; the sentence names the place.
    """

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.sentence, self.reason = sentence, reason

    def __reduce__(self) -> tuple[type["BadDocument"], tuple[str, str]]:
        return type(self), (self.sentence, self.reason)


class Skipped:
    """The documents of one shard that were passed over: their number and the first of each reason."""

    def __init__(self, is_allowed: Callable[[], bool]) -> None:
        self._is_allowed = is_allowed
        self.counts: collections.Counter[str] = collections.Counter()
        self.first: dict[str, str] = {}
        self._verbs: dict[str, str] = {}

    def tell(self, verb: str, reason: str, sentence: Callable[[], str]) -> None:
        """Counts a document that an option treats so; `sentence` on the first of its reason names the place."""
        self.counts[reason] += 1
        self._verbs[reason] = verb
        if reason not in self.first:
            self.first[reason] = sentence()

    def add(self, bad: BadDocument) -> None:
        """Passes over a document.

        Raises:
            BadDocument: no further one may be.
        """
        if not self._is_allowed():
            raise bad
        self.counts[bad.reason] += 1
        self.first.setdefault(bad.reason, bad.sentence)

    def write(self, path: Path) -> None:
        """Keeps them in a file beside the shard, for a run that resumes."""
        if self.counts:
            entries = {
                reason: (self.counts[reason], self.first[reason], self._verbs.get(reason, PASSED_OVER))
                for reason in self.counts
            }
            path.write_text(json.dumps(entries))


def note_of(shard: Path) -> Path:
    """Returns the file that tells what was passed over for a shard."""
    return shard.with_name(f".skipped-{shard.stem}.json")


def summed(notes: Iterable[Path]) -> tuple[dict[str, int], list[str]]:
    """Returns the counts by reason that the notes hold, of documents that are not there, and a sentence for every
    reason.
    """
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
    """Returns how many documents that cannot be read the notes hold."""
    read = [read_json(note) for note in notes if note.is_file()]
    return sum(count for note in read for count, _, verb in note.values() if verb == PASSED_OVER)
