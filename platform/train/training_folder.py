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
from trainers.records import checkpoints
from trainers.records.plain_files import last_attempt, open_plain, read_json, refuse_others
from trainers.records.training import FORMAT, Record, Steps, TrainingPlan
from trainers.records.training_files import ATTEMPT, CHECKPOINTS, LOCK, OWN_FILES, PLAN, RECORDS, STOP, STOP_UNSAVED
from trainers.records.training_lines import Reader, without_redone
from trainers.records.trust import admit
from trainers.spec.codec import from_json, shortened, to_json
from trainers.spec.errors import MissingFileError


class TrainingFolder:
    """The folder of one training."""

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        """Opens a folder, or the place of a new one.

        Raises:
            InputError: it holds a link, or is another user's and not `trusted`.
        """
        admit(path, (*OWN_FILES, CHECKPOINTS), trusted=trusted)
        self.path = path

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Creates the folder where it is missing, and locks it against other drivers.

        Raises:
            InputError: it cannot be made, a file in it is none of a training, or another process trains in it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_others(*(self.path / name for name in OWN_FILES))
            last_attempt(self.path / ATTEMPT)
            file = open_plain(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise InputError(f"the folder {self.path} cannot be made: {error.strerror}") from error
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
            InputError: the file cannot be read, or is of another version.
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
        """Returns what stands in the plan's file; None where there is none."""
        path = self.path / PLAN
        try:
            return read_json(path)
        except MissingFileError:
            return None
        except InputError as error:
            raise InputError(f"{error}: train into another --out") from error

    def write_plan(self, plan: TrainingPlan) -> None:
        """Writes the plan; a resumed training may differ from its first plan in layouts and batch points only.

        Raises:
            InputError: something else differs.
        """
        before = self.plan()
        if before is not None:
            unknown = {
                name: None for name in ("data_content", "validation_content") if getattr(before, name) is None
            }  # a version that did not look wrote the plan
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
        """Returns the id by which the training's run in MLflow is looked up; empty before `write_plan`."""
        stored = self._stored()
        return "" if stored is None else str(stored.get("id", ""))

    def next_attempt(self) -> int:
        """Begins a new attempt and returns its number; workers of older attempts stop writing.

        Raises:
            InputError: the file of the last one's number holds none, or cannot be written.
        """
        path = self.path / ATTEMPT
        number = last_attempt(path) + 1
        with replacing(path, durably=True) as part:
            part.write_text(str(number))
        (self.path / STOP).unlink(missing_ok=True)
        return number

    def ask_to_stop(self, *, saves: bool = True) -> None:
        """Requests that the attempt ends, and `saves` a checkpoint before.

        Raises:
            InputError: the file cannot be written.
        """
        with replacing(self.path / STOP) as part:
            part.write_text("" if saves else STOP_UNSAVED)

    @property
    def records(self) -> Path:
        """The file that the workers write records to."""
        return self.path / RECORDS

    def read_records(self) -> list[Record]:
        """Returns the training's records, without steps that a later attempt repeated."""
        return without_redone(Reader(self.records).read())

    def newest_checkpoint(self) -> Path | None:
        """Returns the folder of the newest checkpoint whose files are there in full; None where there is none at all.

        Raises:
            InputError: there are some, and none is whole.
        """
        try:
            return checkpoints.newest(self.path / CHECKPOINTS)
        except ValueError as error:
            raise InputError(str(error)) from error

    def verified_checkpoint(self) -> tuple[Path | None, list[checkpoints.Damage]]:
        """Returns the newest checkpoint of which every byte is as it was written, None where there is none at all, and
        the newer ones that are damaged.

        Raises:
            InputError: there are some, and none is whole.
        """
        try:
            return checkpoints.newest_whole(self.path / CHECKPOINTS, checkpoints.damage)
        except ValueError as error:
            raise InputError(str(error)) from error

    def tokens_saved(self) -> int:
        """Returns the number of tokens that the newest checkpoint was trained on; 0 where there is none.

        Raises:
            InputError: there are some, and none is whole.
        """
        newest = self.newest_checkpoint()
        return 0 if newest is None else checkpoints.read_manifest(newest).tokens


def steps_of(records: list[Record]) -> list[Steps]:
    """Returns the records of optimizer steps, in order."""
    return [record for record in records if isinstance(record, Steps)]
