"""The session's knowledge of its study: the history, with results that are not yet written to the journal."""

from collections.abc import Iterable

from platform.study.history import History
from platform.study.study import Study
from trainers.records.journal import Line, Measured
from trainers.records.journal_lines import now
from trainers.records.measurement import Measurement


class StudyLog:
    """A study's history with the journal that it comes from."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._tail, self._history = study.follow()
        self._unwritten: list[Measured] = []
        """Settled without a trial: in `history` already, in the journal with the next line."""

    @property
    def history(self) -> History:
        """The history as of the last `refresh`."""
        return self._history

    @property
    def has_unwritten(self) -> bool:
        """Whether something settled is not yet in the journal."""
        return bool(self._unwritten)

    def refresh(self) -> None:
        """Reads what running trials have written since the last call."""
        self._history.extend(self._tail.read())

    def record_outcomes(self, measurements: Iterable[Measurement]) -> None:
        """Adds measurements that follow from others, without writing them yet."""
        entries = [Measured(measurement=measurement, at=now()) for measurement in measurements]
        self._history.extend(entries)
        self._unwritten += entries

    def write(self) -> None:
        """Writes what was settled to the journal."""
        for entry in self._unwritten:
            self._study.record(entry)
        self._unwritten.clear()
        self.refresh()

    def record(self, line: Line) -> None:
        """Writes what was settled to the journal, then the line."""
        self.write()
        self._study.record(line)
