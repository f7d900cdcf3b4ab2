"""Handles an interrupt of a training: decides whether a checkpoint fits in the remaining time, and says so."""

import dataclasses
import math
import time
from pathlib import Path

from platform.common.text import duration
from trainers.host.failures import size
from trainers.records.training import NotSaved, Record, Saved, Saving, Steps
from trainers.records.training_files import CHECKPOINTS

QUIET_S = 120.0
"""An interrupted training must record or write something within these seconds plus those of two steps."""


class CheckpointWatch:
    """The state of a training's checkpoints, from its records and files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CHECKPOINTS
        self._saved: Saved | None = None
        self._saving: Saving | None = None
        self._began_s = 0.0
        self._step_s = 0.0

    def add(self, records: list[Record]) -> None:
        for record in records:
            match record:
                case Saving():
                    self._saving, self._began_s = record, time.monotonic()
                case Saved():
                    self._saved, self._saving = record, None
                case NotSaved():
                    self._saving = None
                case Steps():
                    self._step_s = record.steps_s / len(record.losses)
                case _:
                    pass

    @property
    def quiet_s(self) -> float:
        return QUIET_S + 2 * self._step_s

    def written(self) -> int:
        """Returns the bytes on disk of the checkpoint being written; 0 if none is."""
        if self._saving is None:
            return 0
        try:
            return sum(path.stat().st_size for path in (self._folder / self._saving.name).glob("*.safetensors"))
        except OSError:
            return 0

    def progress(self) -> str:
        """Returns the state of the checkpoint being written as a clause; "" if none is."""
        if self._saving is None:
            return ""
        gib = self.written() / 2**30
        of_all = f"checkpoint of step {self._saving.step:,}: {size(min(gib, self._saving.gib))} of"
        checked = ", read back" if gib >= self._saving.gib else ""
        return f"{of_all} {size(self._saving.gib)} written{checked}"

    def answer(self, grace_s: float | None) -> "InterruptAnswer":
        """Returns the answer to an interrupt at this moment.

        `grace_s` is the time in seconds until the machine is taken away; None for no limit.
        """
        left_s = math.inf if grace_s is None else grace_s
        in_time = "" if grace_s is None else f" if that takes less than the {duration(grace_s)} of --grace"
        second = "; a second interrupt ends it at once."
        if self._saved is None:
            begun = f" ({self.progress()})" if self._saving else ""
            return InterruptAnswer(
                saves=self._saving is None or grace_s is None,
                sentence=f"Interrupted: the training saves its first checkpoint{begun} and ends{in_time}{second}",
            )
        save_s, gib = self._saved.stall_s + self._saved.background_s, self._saved.gib
        begun_s = 0.0 if self._saving is None else max(0.0, self._began_s + save_s - time.monotonic())
        if self._step_s + begun_s + save_s <= left_s:
            about = f"of {size(gib)}, about {duration(self._step_s + begun_s + save_s)}"
            return InterruptAnswer(
                saves=True, sentence=f"Interrupted: the training saves a checkpoint ({about}) and ends{second}"
            )
        takes = f"another takes about {duration(save_s)} of the {duration(left_s)} of --grace"
        ends = (
            f"with the checkpoint of step {self._saving.step:,} that is being written"
            if self._saving is not None and begun_s <= left_s
            else f"without a further checkpoint than that of step {self._saved.step:,}"
        )
        return InterruptAnswer(saves=False, sentence=f"Interrupted: the training ends {ends}, for {takes}{second}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InterruptAnswer:
    saves: bool
    """Whether a further checkpoint is started."""
    sentence: str
