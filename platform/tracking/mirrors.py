"""The mirrors of one study: MLflow's, and W&B's where it is asked for."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from platform.study.result.result import StudyResult
from platform.tracking.mirror import Mirror


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mirrors:
    """Several mirrors as one; each has a thread of its own."""

    all: Sequence[Mirror]

    def start(self, is_ready: Callable[[], object] = lambda: True) -> "Mirrors":
        """Begins all of them, see `Mirror.start`."""
        for mirror in self.all:
            mirror.start(is_ready=is_ready)
        return self

    def close(self, timeout_s: float, result: StudyResult | None = None, also: Sequence[Path] = ()) -> str:
        """Ends all of them, each within `timeout_s`; returns sentences on what they lack, "" for nothing."""
        return "\n".join(filter(None, (mirror.close(timeout_s, result, also) for mirror in self.all)))

    @property
    def look(self) -> str:
        """The commands to type and the pages to open to view the study."""
        return "\n".join(mirror.look for mirror in self.all)
