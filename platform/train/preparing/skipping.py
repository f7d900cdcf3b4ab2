"""Documents that cannot be read: the first ends the run, or up to a number of them are passed over and told."""

import collections
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from trainers.records.plain_files import read_json


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
            path.write_text(json.dumps({reason: [self.counts[reason], self.first[reason]] for reason in self.counts}))


def note_of(shard: Path) -> Path:
    """Returns the file that tells what was passed over for a shard."""
    return shard.with_name(f".skipped-{shard.stem}.json")


def summed(notes: Iterable[Path]) -> tuple[dict[str, int], list[str]]:
    """Returns the counts by reason that the notes hold, and a sentence for each."""
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    for note in notes:
        read: Mapping[str, Any] = read_json(note) if note.is_file() else {}
        for reason, (count, sentence) in read.items():
            counts[reason] += count
            first.setdefault(reason, sentence)
    return dict(counts), [f"Passed over {counts[reason]:,}: {reason}; the first: {first[reason]}" for reason in counts]
