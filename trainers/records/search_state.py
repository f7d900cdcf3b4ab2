"""The states of a search. The journal records with each trial the state that asked for it."""

import enum


class SearchState(enum.StrEnum):
    """The activity of a search. `platform/search/loop/transitions.py` defines each state's work and the next state."""

    RESUMING = "resuming"
    """An earlier session left its confirmation unfinished; it is completed before the search continues."""
    EXPLORING = "exploring"
    CONFIRMING = "confirming"
    BREAKING_TIES = "breaking ties"
    MEASURING_WINNER = "measuring the winner"
    GATING = "gating"
    PROFILING = "profiling"
    DONE = "done"
    FAULTED = "faulted"

    @property
    def is_terminal(self) -> bool:
        """Whether the session runs no further trial."""
        return self in (SearchState.DONE, SearchState.FAULTED)
