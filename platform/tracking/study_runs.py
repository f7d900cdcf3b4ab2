"""The interface by which a mirror repeats a study in a tracker."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from platform.study.result.result import StudyResult
from platform.tracking.content import Content
from platform.tracking.system_metrics import Sample


class StudyRuns(Protocol):
    """A study's run in a tracker, with a run below it for each measurement, gate and profile. Each method raises
    whatever the tracker raises.
    """

    @property
    def addresses(self) -> Mapping[str, str]:
        """Address of each saved view, by its name."""
        ...

    def add(self, content: Content) -> None:
        """Makes a run below the study's, once."""
        ...

    def set_roles(self, roles: Mapping[str, str]) -> None:
        """Notes the role of each measurement's run, by the entry's id."""
        ...

    def tidy(self) -> None:
        """Removes runs that were made twice, after a connection was lost."""
        ...

    def running(self) -> None:
        """Marks the study as running, also one that had ended."""
        ...

    def samples_until_ms(self) -> int:
        """Returns the Unix milliseconds of the last stored sample of the machine; 0 for none."""
        ...

    def samples(self, samples: Sequence[Sample]) -> None:
        """Stores samples of the machine."""
        ...

    def describe(self, text: str) -> None:
        """Puts a text, in Markdown, at the head of the study's page."""
        ...

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Stores rows with the study's run, replacing earlier ones of that name."""
        ...

    def attach(self, files: Sequence[Path]) -> None:
        """Stores files with the study's run, replacing earlier ones of the same name."""
        ...

    def ended(self, result: StudyResult, folder: Path, *, status: str, ended_at: str) -> None:
        """Marks the study as ended, with figures and verdict of its first recipe's winner."""
        ...
