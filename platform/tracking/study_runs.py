"""The interface through which a mirror repeats a study in a tracker."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from platform.study.result.result import StudyResult
from platform.tracking.content import Content
from platform.tracking.system_metrics import Sample


class StudyRuns(Protocol):
    """A study's run in a tracker, with a child run for each measurement, gate and profile.

    Every method raises the tracker's own errors.
    """

    @property
    def addresses(self) -> Mapping[str, str]: ...

    def add(self, content: Content) -> None:
        """Creates an entry's run, unless it exists."""
        ...

    def set_roles(self, roles: Mapping[str, str]) -> None:
        """Sets the roles of measurements' runs, by entry id."""
        ...

    def tidy(self) -> None:
        """Removes duplicate runs, which may be created when a connection is lost."""
        ...

    def running(self) -> None:
        """Marks the study as running, even if it had ended."""
        ...

    def samples_until_ms(self) -> int:
        """Returns the Unix milliseconds of the last stored sample of the machine; 0 without one."""
        ...

    def samples(self, samples: Sequence[Sample]) -> None: ...

    def describe(self, text: str) -> None:
        """Writes Markdown `text` at the top of the study's page."""
        ...

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Stores rows with the study's run; replaces those of the same name."""
        ...

    def attach(self, files: Sequence[Path]) -> None:
        """Stores files with the study's run; replaces those of the same name."""
        ...

    def ended(self, result: StudyResult, folder: Path, *, status: str, ended_at: str) -> None:
        """Marks the study as ended, with figures and verdict of its first recipe's winner."""
        ...
