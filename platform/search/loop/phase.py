"""The phases of a session and the named values of its decisions.

| phase | which trials run | what comes after it |
|---|---|---|
| searching | what the searcher wants, until it has nothing more or a budget ends | confirming |
| confirming | the best points again, in processes of their own | contending, last run |
| contending | points that a disturbed machine leaves level, in turn | last run |
| last run | the winner at length, with its numerics gate | gating, or another winner's confirming |
| gating | curves of a gate alone: the reference's, or the winner's | profiling, or another winner's confirming |
| profiling | the winner under the profiler | ended |
| ended, faulted | none: nothing is left, or the cluster is at fault | |

The journal alone says which of the final phases is next: a trial that fails may change the winner. A session that
goes on with final runs begins with these, and searches after them.
"""

import dataclasses
import enum

from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from trainers.records.job import Job


class SessionPhase(enum.Enum):
    """The phases of a session. See the module."""

    SEARCHING = "searching"
    CONFIRMING = "confirming"
    CONTENDING = "contending"
    LAST_RUN = "last run"
    GATING = "gating"
    PROFILING = "profiling"
    ENDED = "ended"
    FAULTED = "faulted"

    @property
    def is_terminal(self) -> bool:
        """Whether no further trial runs."""
        return self in (SessionPhase.ENDED, SessionPhase.FAULTED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The next action."""

    phase: SessionPhase
    job: Job | None = None
    """The trial to run; None in a terminal phase."""
    final: ConfirmationTrial | None = None
    """The final trial that the job was made for; None for a trial of the search."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchEnd:
    """The reason why the search is over."""

    reason: str
    tried_all: bool
    """Whether the searcher had nothing more to try; otherwise a budget ended it."""


def phase_of(trial: ConfirmationTrial) -> SessionPhase:
    """Returns the phase of a final trial."""
    if trial.profile is not None:
        return SessionPhase.PROFILING
    if not trial.rungs:
        return SessionPhase.GATING
    if trial.is_winner_run:
        return SessionPhase.LAST_RUN
    return SessionPhase.CONTENDING if trial.contends else SessionPhase.CONFIRMING
