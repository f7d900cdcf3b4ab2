"""Computes the duration of a study's sessions from the times of journal lines."""

import dataclasses
import datetime


@dataclasses.dataclass(kw_only=True, slots=True)
class SessionClock:
    """Sums the seconds of consecutive sessions; the last one may still be running."""

    last: datetime.datetime | None = None
    """Time of the last line; None before the first."""
    _began_at: datetime.datetime | None = None
    """Time of the running session's first line; None between sessions."""
    _past_s: float = 0.0
    """Seconds of all ended sessions."""

    def begin(self, began_at: datetime.datetime) -> None:
        self._began_at = began_at

    def end(self, wall_s: float | None) -> None:
        """Ends the session after `wall_s` seconds; with None (the session was killed), at its last line.

        A second end of one session adds nothing.
        """
        if self._began_at is None:
            return
        self._past_s += self._running_s if wall_s is None else wall_s
        self._began_at = None

    def since_s(self, written_at: str) -> float:
        """Returns the seconds from the ISO time `written_at` to the last line."""
        return max(0.0, (self.last - datetime.datetime.fromisoformat(written_at)).total_seconds()) if self.last else 0.0

    @property
    def wall_s(self) -> float:
        """Seconds of all sessions; a running one counts until its last line."""
        return self._past_s + self._running_s

    @property
    def _running_s(self) -> float:
        if self._began_at is None or self.last is None:
            return 0.0
        return max(0.0, (self.last - self._began_at).total_seconds())
