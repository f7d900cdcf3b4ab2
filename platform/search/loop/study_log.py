"""The session's knowledge of its study: the history, including results not yet written to the journal."""

from collections.abc import Iterable

from platform.study.history import History
from platform.study.study import Study
from trainers.records.journal import Line, Measured
from trainers.records.journal_lines import now
from trainers.records.measurement import Measurement


class StudyLog:
    """A study's history together with its journal."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._tail, self._history = study.follow()
        self._unwritten: list[Measured] = []
        """Results settled without a trial. They are already in `history`, and are written before the next line."""

    @property
    def history(self) -> History:
        return self._history

    @property
    def has_unwritten(self) -> bool:
        """Whether a settled result is not yet in the journal."""
        return bool(self._unwritten)

    def refresh(self) -> None:
        """Reads the lines that running trials have written since the last call."""
        self._history.extend(self._tail.read())

    def record_outcomes(self, measurements: Iterable[Measurement]) -> None:
        """Adds measurements that follow from others, without writing them yet."""
        entries = [Measured(measurement=measurement, at=now()) for measurement in measurements]
        self._history.extend(entries)
        self._unwritten += entries

    def write(self) -> None:
        """Writes the settled results to the journal."""
        for entry in self._unwritten:
            self._study.record(entry)
        self._unwritten.clear()
        self.refresh()

    def record(self, line: Line) -> None:
        """Writes the settled results to the journal, then `line`."""
        self.write()
        self._study.record(line)
