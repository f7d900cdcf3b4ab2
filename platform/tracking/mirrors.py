"""The mirrors of one study: MLflow's, and W&B's if requested."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from platform.study.result.result import StudyResult
from platform.tracking.mirror import Mirror


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mirrors:
    """Several mirrors as one; each has its own thread."""

    all: Sequence[Mirror]

    def start(self, is_ready: Callable[[], object] = lambda: True) -> "Mirrors":
        for mirror in self.all:
            mirror.start(is_ready=is_ready)
        return self

    def close(self, timeout_s: float, result: StudyResult | None = None, also: Sequence[Path] = ()) -> str:
        """Closes all mirrors, each within `timeout_s` seconds; returns sentences on what they lack."""
        return "\n".join(filter(None, (mirror.close(timeout_s, result, also) for mirror in self.all)))

    @property
    def look(self) -> str:
        return "\n".join(mirror.look for mirror in self.all)
