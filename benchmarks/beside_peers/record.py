"""One JSON line for each trial of a peer, written as the trial ends."""

import json
import time
from pathlib import Path
from typing import Any


class Record:
    """Appends a peer's trials to `path`; seconds count from `began_unix_s`, when the peer's process started."""

    def __init__(self, path: Path, began_unix_s: float) -> None:
        self._path, self._began_unix_s = path, began_unix_s

    def trial(self, *, outcome: str, choice: Any, tokens_per_s: float | None, at_unix_s: float | None = None) -> None:
        """Writes how a trial ended (`ok`, `oom` or `failed`), at `at_unix_s` or now."""
        line = {
            "at_s": round((at_unix_s or time.time()) - self._began_unix_s, 2),
            "outcome": outcome,
            "tokens_per_s": tokens_per_s,
            "choice": choice,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def outcome_of(error: BaseException) -> str:
    """Returns `oom` where the error, or one that caused it, mentions memory."""
    text = f"{type(error).__name__} {error} {error.__cause__}".lower()
    return "oom" if "out of memory" in text or "outofmemory" in text else "failed"
