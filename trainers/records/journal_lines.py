"""Converts journal lines to text and back. All appending goes through it, also in processes without the driver's code.

A journal is a text file with a JSON object per line. It is only appended to, each line in one write, and a line is on
disk when `append` returns. Non-finite numbers have Python's form (`NaN`, `Infinity`). Besides its fields a line has
`kind`, `schema`, and last `crc32`, the checksum of the line without that member. A reader may ignore a line of an
unknown kind if it has `optional`.
"""

import datetime
import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pydantic_core

from trainers.records.journal import Line
from trainers.records.plain_files import private_mode
from trainers.spec.codec import from_json, shown, to_json

SCHEMA = 2
"""Version in every line, raised if one version would misread another's lines; a reader accepts only its own."""

_KINDS: dict[str, type[Line]] = {kind.kind: kind for kind in get_args(Line)}
_SEAL = b',"crc32":"'
_SEAL_BYTES = len(_SEAL) + len('01234567"}')


class JournalError(ValueError):
    """The line cannot be used; the text states why."""


class NewerSchemaError(JournalError):
    """A newer version of this project wrote the line; `commit` is that version's if the line states it, else ""."""

    def __init__(self, schema: int, commit: str = "") -> None:
        super().__init__(f"written by a newer version (journal schema {schema}, this one reads up to {SCHEMA})")
        self.commit = commit


def to_line(entry: Line) -> dict[str, Any]:
    """Returns the JSON object of `entry`, ready for `append`."""
    marks: dict[str, Any] = {"kind": entry.kind, "schema": SCHEMA}
    if getattr(entry, "optional", False):
        marks["optional"] = True
    return {**marks, **to_json(entry)}


def from_line(text: str | bytes) -> Line | None:
    """Returns the entry of a journal's line; None for an unknown kind that may be ignored.

    Raises:
        NewerSchemaError: a newer version of this project wrote it.
        JournalError: it is cut short, was changed, is not a journal's line, or has impossible values.
    """
    raw = (text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text).strip()
    fields = _parsed(raw)
    schema, kind = fields.pop("schema", None), fields.pop("kind", None)
    if type(schema) is not int:
        raise JournalError(f"schema must be a whole number, got {schema!r}")
    if schema < SCHEMA:
        raise JournalError(f"written by an older version (journal schema {schema}, this one reads {SCHEMA})")
    if not _is_sealed(raw):
        raise JournalError("its checksum does not match: it was changed after it was written")
    fields.pop("crc32", None)
    line_type = _KINDS.get(kind) if isinstance(kind, str) else None
    if fields.pop("optional", False) is True and line_type is None:
        return None
    if schema > SCHEMA:
        commit = fields.get("commit")
        raise NewerSchemaError(schema, commit if isinstance(commit, str) else "")
    if line_type is None:
        raise JournalError(f"unknown kind {kind!r}: this version knows {', '.join(_KINDS)}")
    try:
        if datetime.datetime.fromisoformat(fields["at"]).tzinfo is None:
            raise ValueError(f"at must have a time zone, got {fields['at']!r}")
        return from_json(line_type, fields)
    except KeyError as error:
        raise JournalError(f"a {kind} without {error}") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise JournalError(f"not a valid {kind}: {error}") from error


def checked(text: bytes) -> dict[str, Any]:
    """Returns the members of a line that `append` wrote, without its checksum.

    Raises:
        JournalError: it is cut short or was changed.
    """
    raw = text.strip()
    fields = _parsed(raw)
    if not _is_sealed(raw):
        raise JournalError("its checksum does not match: it was changed after it was written")
    del fields["crc32"]
    return fields


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        try:
            data = pydantic_core.from_json(raw)  # takes half the time of `json`, which dominates reading a journal
        except ValueError:
            data = json.loads(raw)  # unpaired surrogates, from file names that are not UTF-8; only Python reads them
    except (ValueError, RecursionError) as error:
        raise JournalError("not a whole JSON object") from error
    if not isinstance(data, dict):
        raise JournalError("not a JSON object")
    return shown(raw, data)


def sealed(body: str) -> str:
    """Returns the JSON object `body` with its checksum as the last member."""
    return f'{body[:-1]}{_SEAL.decode()}{zlib.crc32(body.encode()):08x}"}}'


def _is_sealed(raw: bytes) -> bool:
    end = raw[-_SEAL_BYTES:]
    return end.startswith(_SEAL) and end[len(_SEAL) : -2] == b"%08x" % zlib.crc32(raw[:-_SEAL_BYTES] + b"}")


def append(path: str | os.PathLike[str], line: Mapping[str, Any], *, must_exist: bool = False) -> None:
    """Appends `line` with its checksum to the journal at `path` and flushes it to disk; sets "at" if missing or empty.

    Safe between processes of one machine, because a line is one write at the file's end. If the last writer was killed
    in the middle of a line, the new line starts after a line break. A new journal is readable by this user only, or
    also by the folder's group if that may write there. With `must_exist` no journal is created; only a study's first
    line creates one.

    Raises:
        OSError: the line could not be written in full (disk full, folder or file gone), or the path is a link.
    """
    text = sealed(json.dumps({**line, "at": line.get("at") or now()}, separators=(",", ":")))
    created = not must_exist and not Path(path).exists()
    creates = 0 if must_exist else os.O_CREAT  # a journal that was moved away must not be restarted in the middle
    mode = private_mode(Path(path).parent)
    file = os.open(path, os.O_RDWR | os.O_APPEND | creates | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        size = os.fstat(file).st_size
        # Another process's unfinished write may lead to an empty line, which readers skip.
        lead = b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""
        data = lead + text.encode() + b"\n"
        written = os.write(file, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))  # a full disk cuts the last line
        os.fsync(file)
    finally:
        os.close(file)
    if created:
        flush(Path(path).parent)


def record(path: str | os.PathLike[str], entry: Line, *, must_exist: bool = False) -> None:
    append(path, to_line(entry), must_exist=must_exist)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def flush(path: Path) -> None:
    """Flushes a file, or a folder to make a new file's name durable, which fsync of the file does not."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
