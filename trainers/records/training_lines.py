"""The records of a training as lines of `training.jsonl`: append-only, each with its checksum."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from trainers.records.journal_lines import JournalError, append, checked
from trainers.records.plain_files import MOST_BYTES, lines_of, open_plain
from trainers.records.training import Begun, Record, Steps, Validated
from trainers.spec.codec import from_json, to_json
from trainers.spec.errors import MissingFileError

_KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in get_args(Record)}


def write(path: Path, record: Record) -> None:
    """Appends the record; it is on disk when this returns.

    Raises:
        OSError: the line could not be written in full.
    """
    append(path, {"kind": record.kind, **to_json(record)})


class Reader:
    """Reads the lines appended since the last read; skips unusable lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def read(self) -> list[Record]:
        """Returns the new records; an incomplete last line is left for the next read.

        Raises:
            InputError: the file is no regular file, or cannot be opened.
        """
        try:
            file = open_plain(self._path, most_bytes=MOST_BYTES)
        except MissingFileError:
            return []
        with os.fdopen(file, "rb") as opened:
            opened.seek(self._place)
            complete = list[bytes]()
            for line in lines_of(opened, self._path):
                if not line.endswith(b"\n"):
                    break
                self._place += len(line)
                complete.append(line)
        return [record for line in complete if (record := _record_of(line.rstrip(b"\n"))) is not None]


def _record_of(line: bytes) -> Record | None:
    try:
        fields = checked(line)
    except JournalError:
        return None
    name = fields.pop("kind", "")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    fields.pop("at", None)
    try:
        return None if kind is None else from_json(kind, fields)
    except ValueError:
        return None


def without_redone(records: Sequence[Record]) -> list[Record]:
    """Returns the records, without records of steps that a later attempt repeated from an earlier checkpoint."""
    valid: list[Record] = []
    for record in records:
        if isinstance(record, Begun):
            valid = [kept_part for earlier in valid if (kept_part := _up_to(earlier, record.step)) is not None]
        elif isinstance(record, Validated):  # an attempt without a checkpoint repeats the one before the first step
            valid = [earlier for earlier in valid if not isinstance(earlier, Validated) or earlier.step != record.step]
        valid.append(record)
    return valid


def _up_to(record: Record, step: int) -> Record | None:
    """Returns the part of the record on the steps up to `step`; None if there is none."""
    if not isinstance(record, Steps):
        return record if record.step <= step else None
    num_left = min(len(record.losses), step - record.first_step + 1)
    if num_left < 1:
        return None
    behind = len(record.losses) - num_left
    step_s = record.steps_s / len(record.losses)
    trained = record.trained_tokens
    return dataclasses.replace(
        record,
        losses=record.losses[:num_left],
        grad_norms=record.grad_norms[:num_left],
        learning_rates=record.learning_rates[:num_left],
        tokens=record.tokens - behind * record.tokens_per_step,
        train_s=record.train_s - behind * step_s,
        steps_s=num_left * step_s,
        data_s=record.data_s * num_left / len(record.losses),
        trained_tokens=None if trained is None else round(trained * num_left / len(record.losses)),
    )
