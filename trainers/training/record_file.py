"""The file of a training's records, written by rank 0."""

from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from trainers.records.training import NotSaved, Record, Saved
from trainers.records.training_lines import write
from trainers.training.checkpoint import Written


class RecordFile:
    """Appends records on rank 0 while `is_current`; if the disk is full, retries later, so that steps continue."""

    def __init__(self, path: Path, *, is_current: Callable[[], bool]) -> None:
        self._path, self._is_current = path, is_current
        self._unwritten: list[Record] = []

    def add(self, record: Record) -> None:
        """Appends the record, after earlier ones that could not be written."""
        if dist.get_rank() or not self._is_current():
            return
        self._unwritten.append(record)
        self._write()

    def add_checkpoint(self, written: Written | None) -> None:
        """Appends the result of a checkpoint; nothing for None."""
        if written is None:
            return
        attempt, step = written.manifest.attempt, written.manifest.step
        if written.error:
            self.add(NotSaved(attempt=attempt, step=step, reason=written.error))
            return
        saved = Saved(
            attempt=attempt,
            step=step,
            name=written.name,
            stall_s=written.stall_s,
            background_s=written.background_s,
            gib=written.gib,
        )
        self.add(saved)

    def finish(self) -> bool:
        """Tries again to write pending records; returns whether all are on disk."""
        self._write()
        return not self._unwritten

    def _write(self) -> None:
        try:
            while self._unwritten:
                write(self._path, self._unwritten[0])
                del self._unwritten[0]
        except OSError:
            return
