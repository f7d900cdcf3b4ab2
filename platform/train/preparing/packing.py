"""Packs documents into sequences of one length without cutting them: best fit over a limited number of sequences."""

import bisect
from collections.abc import Iterator

import numpy as np

from trainers.data.footer import Tokens

_SEQUENCES = 128
_TOKENS = 2**20
"""Largest number of sequences and of tokens packed at once; at least `_FEWEST` sequences."""
_FEWEST = 16
_NOTHING = Tokens(ids=np.zeros(0, np.int64), document_starts=np.zeros(0, np.int64), marks=np.zeros(0, np.bool_))


class Packer:
    """Packs documents of at most `length` tokens, and fills sequences up with unmarked `pad_id` tokens.

    A sequence keeps its documents in order. Sequences are ordered by their first documents, except that the emptier
    half waits for more documents.
    """

    def __init__(self, length: int, pad_id: int) -> None:
        self._length, self._pad_id = length, pad_id
        self._waiting: list[tuple[int, Tokens]] = []
        self._num_waiting_tokens = self._num_documents = 0
        self._capacity = length * max(_FEWEST, min(_SEQUENCES, _TOKENS // length))
        self.padding = 0
        """Number of padding tokens so far."""

    def add(self, document: Tokens) -> Iterator[Tokens]:
        """Adds a document, and yields the documents of sequences that are full enough."""
        self._waiting.append((self._num_documents, document))
        self._num_documents += 1
        self._num_waiting_tokens += len(document.ids)
        if self._num_waiting_tokens >= self._capacity:
            sequences = sorted(self._packed(), key=lambda sequence: sequence[0])
            half = (len(sequences) + 1) // 2
            self._waiting = sorted((entry for _, entries in sequences[half:] for entry in entries), key=_number)
            self._num_waiting_tokens = sum(len(waiting.ids) for _, waiting in self._waiting)
            yield from self._filled([entries for _, entries in sequences[:half]])

    def close(self, *, is_last: bool) -> Iterator[Tokens]:
        """Yields the remaining sequences.

        A folder's last sequence gets one more token, because a sequence includes the token that its last one predicts;
        this token has no loss.
        """
        documents = list(self._filled([entries for _, entries in self._packed()]))
        if is_last:
            self.padding += 1
            documents.append(self._padded(documents.pop() if documents else _NOTHING, 1))
        yield from documents

    def _packed(self) -> list[tuple[int, list[tuple[int, Tokens]]]]:
        """Returns sequences of the waiting documents, each with its number of missing tokens."""
        sequences: list[tuple[int, list[tuple[int, Tokens]]]] = []
        by_room: list[tuple[int, int]] = []
        for entry in sorted(self._waiting, key=lambda entry: (-len(entry[1].ids), entry[0])):
            size = len(entry[1].ids)
            place = bisect.bisect_left(by_room, (size, -1))
            room, number = by_room.pop(place) if place < len(by_room) else (self._length, len(sequences))
            if number == len(sequences):
                sequences.append((0, []))
            sequences[number][1].append(entry)
            bisect.insort(by_room, (room - size, number))
        for room, number in by_room:
            sequences[number] = room, sorted(sequences[number][1], key=_number)
        return sequences

    def _filled(self, sequences: list[list[tuple[int, Tokens]]]) -> Iterator[Tokens]:
        for entries in sorted(sequences, key=lambda entries: _number(entries[0])):
            documents = [document for _, document in entries]
            room = self._length - sum(len(document.ids) for document in documents)
            self.padding += room
            documents[-1] = self._padded(documents[-1], room)
            yield from documents

    def _padded(self, document: Tokens, size: int) -> Tokens:
        assert document.marks is not None
        return Tokens(
            ids=np.concatenate((document.ids, np.full(size, self._pad_id, document.ids.dtype))),
            document_starts=np.zeros(1, np.int64),
            marks=np.concatenate((document.marks, np.zeros(size, np.bool_))),
        )


def _number(entry: tuple[int, Tokens]) -> int:
    return entry[0]
