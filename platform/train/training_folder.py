"""A training's folder: its plan, its lock, the number of its newest attempt, its records."""

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from platform.study.folder import make_folder
from trainers.records import checkpoints
from trainers.records.plain_files import last_attempt, open_plain, read_json, refuse_others
from trainers.records.training import FORMAT, Record, Steps, TrainingPlan
from trainers.records.training_files import ATTEMPT, CHECKPOINTS, LOCK, OWN_FILES, PLAN, RECORDS, STOP, STOP_UNSAVED
from trainers.records.training_lines import Reader, without_redone
from trainers.records.trust import admit
from trainers.spec.codec import from_json, shortened, to_json
from trainers.spec.errors import MissingFileError


class TrainingFolder:
    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        """Opens a folder, which may not exist yet.

        Raises:
            InputError: the folder has a link in it, or belongs to another user and is not `trusted`.
        """
        admit(path, (*OWN_FILES, CHECKPOINTS), trusted=trusted)
        self.path = path

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Creates the folder if it is missing, and locks it against other drivers.

        Raises:
            InputError: the folder cannot be created or is not a training's, or another process trains in it.
        """
        make_folder(self.path)
        refuse_others(*(self.path / name for name in OWN_FILES))
        last_attempt(self.path / ATTEMPT)
        file = open_plain(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"another process trains in {self.path}: wait for it to end, or give --out") from error
            yield
        finally:
            os.close(file)

    def plan(self) -> TrainingPlan | None:
        """Returns the plan with which the training began; None for a new one.

        Raises:
            InputError: the file cannot be read, or has another format.
        """
        stored = self._stored()
        if stored is None:
            return None
        path = self.path / PLAN
        if stored.get("format") != FORMAT:
            raise InputError(
                f"{path} has format {shortened(stored.get('format'))}, this version reads {FORMAT}: give --out"
            )
        try:
            return from_json(TrainingPlan, stored["plan"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} cannot be used ({error}): train into another --out") from error

    def _stored(self) -> dict[str, Any] | None:
        """Returns the content of the plan's file; None if there is none."""
        path = self.path / PLAN
        try:
            return read_json(path)
        except MissingFileError:
            return None
        except InputError as error:
            raise InputError(f"{error}: train into another --out") from error

    def write_plan(self, plan: TrainingPlan) -> None:
        """Writes the plan. A resumed training may only change layouts and batch points of its first plan.

        Raises:
            InputError: anything else differs.
        """
        before = self.plan()
        if before is not None:
            unknown = {
                name: None for name in ("data_content", "validation_content") if getattr(before, name) is None
            }  # an older version did not record it
            old_mathematics, new_mathematics = before.mathematics, dataclasses.replace(plan, **unknown).mathematics
            if changed := [name for name in new_mathematics if new_mathematics[name] != old_mathematics[name]]:
                raise InputError(
                    f"{self.path} holds a training with other mathematics ({', '.join(changed)} differ): give the same"
                    " options, or train into another --out"
                )
        stored = {"format": FORMAT, "id": self.identity() or secrets.token_hex(8), "plan": to_json(plan)}
        with replacing(self.path / PLAN, durably=True) as part:
            part.write_text(json.dumps(stored, indent=1) + "\n")

    def identity(self) -> str:
        """Returns the id that marks the training's run in MLflow; "" before `write_plan`."""
        stored = self._stored()
        return "" if stored is None else str(stored.get("id", ""))

    def next_attempt(self) -> int:
        """Begins a new attempt and returns its number; workers of older attempts then stop writing.

        Raises:
            InputError: the file with the last number is invalid or cannot be written.
        """
        path = self.path / ATTEMPT
        number = last_attempt(path) + 1
        with replacing(path, durably=True) as part:
            part.write_text(str(number))
        (self.path / STOP).unlink(missing_ok=True)
        return number

    def ask_to_stop(self, *, saves: bool = True) -> None:
        """Requests that the attempt ends; with `saves`, after saving a checkpoint.

        Raises:
            InputError: the file cannot be written.
        """
        with replacing(self.path / STOP) as part:
            part.write_text("" if saves else STOP_UNSAVED)

    @property
    def records(self) -> Path:
        return self.path / RECORDS

    def read_records(self) -> list[Record]:
        """Returns the training's records, without steps that a later attempt repeated."""
        return without_redone(Reader(self.records).read())

    def newest_checkpoint(self) -> Path | None:
        """Returns the folder of the newest checkpoint with all its files; None without any checkpoint.

        Raises:
            InputError: there are checkpoints, but none is complete.
        """
        try:
            return checkpoints.newest(self.path / CHECKPOINTS)
        except ValueError as error:
            raise InputError(str(error)) from error

    def verified_checkpoint(self) -> tuple[Path | None, list[checkpoints.Damage]]:
        """Returns the newest checkpoint whose every byte is as written (None without any), and the damaged newer ones.

        Raises:
            InputError: there are checkpoints, but none is undamaged.
        """
        try:
            return checkpoints.newest_whole(self.path / CHECKPOINTS, checkpoints.damage)
        except ValueError as error:
            raise InputError(str(error)) from error

    def tokens_saved(self) -> int:
        """Returns the number of tokens trained on at the newest checkpoint; 0 without one.

        Raises:
            InputError: there are checkpoints, but none is complete.
        """
        newest = self.newest_checkpoint()
        return 0 if newest is None else checkpoints.read_manifest(newest).tokens


def steps_of(records: list[Record]) -> list[Steps]:
    return [record for record in records if isinstance(record, Steps)]
